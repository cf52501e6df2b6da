"""Rolling restarts by SIGTERM under load: nothing is lost, and nothing is done twice, since nobody was killed."""

from __future__ import annotations

import pytest
from e2e.load import STEPS, Load, doubled
from fleet import Fleet, Member, Role, fleet_of
from rig import Rig
from support import until


def roll(fleet: Fleet, member: Member) -> Member:
    """End one in good order, start the next one in its place, and wait until all is well."""
    member.terminate()
    member.until_ended()
    fresh = fleet.restart(member)
    fleet.until_ready()
    return fresh


@pytest.mark.parametrize("roles", [("coordinator", "worker"), ("serve",)], ids=["apart", "serve"])
def test_a_rolling_restart_under_load_loses_and_doubles_nothing(rig: Rig, roles: tuple[Role, ...]) -> None:
    """R5, R6: two processes of each kind, one after the other; one of each has a stable name."""
    with fleet_of(rig) as fleet:
        for role in roles:
            fleet.start(role)
            fleet.start(role, instance="pod")
        fleet.until_ready()
        load = Load(rig)
        with load.flowing():
            for member in list(fleet.members):
                roll(fleet, member)
        rig.until_status("completed", *load.ids, within_ms=60_000)
        assert len(load.ids) > 50
        assert fleet.total("ductor_redrives_total") == 0
        assert doubled(fleet) == {}
        assert len(fleet.effect_counts()) == STEPS * len(load.ids)
        if "worker" in roles:
            # In one process with its owner a worker may answer a redriven task from memory: late, and no second effect.
            assert fleet.total("ductor_late_results_total") == 0
        rig.check()
        assert rig.letters() == []


def test_the_restart_of_a_static_member_disturbs_nobody(rig: Rig) -> None:
    """With an instance id no partition moves: neither of runs nor of tasks."""
    with fleet_of(rig) as fleet:
        coordinators = [fleet.start("coordinator", instance=f"pod-{n}") for n in range(3)]
        workers = [fleet.start("worker", instance=f"pod-{n}") for n in range(3)]
        fleet.until_ready()
        fleet.until_shared("default")
        rig.start(*(f"before-{n}" for n in range(30)), workflow="chain", input=3)
        before = epochs(rig)
        tasks = fleet.shares("default")
        takeovers = fleet.total("ductor_takeovers_total")
        mine = coordinators[1].metric("ductor_partitions_owned")
        fresh = roll(fleet, coordinators[1])
        roll(fleet, workers[1])
        fleet.until_shared("default")

        ids = [f"after-{n}" for n in range(30)]
        rig.start(*ids, workflow="chain", input=3)
        rig.until_status("completed", *ids)
        assert fresh.metric("ductor_partitions_owned") == mine
        assert fleet.total("ductor_takeovers_total") == takeovers + mine
        assert sum(now != before[partition] for partition, now in epochs(rig).items()) == mine
        assert fleet.shares("default") == tasks
        assert doubled(fleet) == {}
        rig.check()


def epochs(rig: Rig) -> dict[int, int]:
    """How often each partition was taken."""
    return {
        row["partition"]: row["epoch"] for row in rig.rows("select partition, epoch from eec_partition where ns = {ns}")
    }


def test_a_stop_does_not_wait_for_what_others_can_do(rig: Rig) -> None:
    """A coordinator that ends has handed over within seconds; a worker finishes what runs, and takes nothing more."""
    with fleet_of(rig) as fleet:
        owner = fleet.start("coordinator")
        worker = fleet.start("worker", "--concurrency", "2")
        fleet.until_ready()
        rig.start("held", workflow="held", input="gate")
        until(lambda: [each for each in fleet.effects() if each["step"] == "gated"], what="the step under way")
        worker.terminate()
        until(lambda: not worker.ready(), what="the worker draining")
        rig.start("later", workflow="chain", input=1)
        rig.until_status("running", "later")
        owner.terminate()
        owner.until_ended()
        fleet.start("coordinator")
        fleet.until_ready()
        assert worker.process.alive()
        (rig.folder / "gate").touch()
        worker.until_ended()
        assert {each["run"] for each in fleet.effects()} == {"held"}
        fleet.start("worker")
        rig.until_status("completed", "held", "later")
        assert doubled(fleet) == {}
        rig.check()
