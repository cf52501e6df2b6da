"""Rolling restarts by SIGTERM under load: nothing is lost, and nothing is done twice, since nobody was killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fleet import Fleet, Member, Role, fleet_of
from rig import CRC32, HOME, Rig
from support import until

STEPS = 6


class Load:
    """Orders come in, one after the other, until the block is left. ``ids`` are those that were sent."""

    def __init__(self, rig: Rig) -> None:
        self.ids: list[str] = []
        self._rig = rig
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            count = len(self.ids)
            run_id, how = f"order-{count}", CRC32 if count % 2 else HOME
            what = {"steps": STEPS, "fine": count % 5 == 0}
            self._rig.start(run_id, workflow="order", input=what, partitioner=how)
            self.ids.append(run_id)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "no order can be sent any more"


def doubled(fleet: Fleet) -> dict[tuple[str, int], int]:
    """Attempts that were run more than once: by key and generation."""
    counts = Counter((each["key"], each["generation"]) for each in fleet.effects())
    return {attempt: count for attempt, count in counts.items() if count > 1}


def roll(fleet: Fleet, member: Member) -> Member:
    """End one in good order, start the next one in its place, and wait until all is well."""
    member.terminate()
    member.until_ended()
    fresh = fleet.restart(member)
    fleet.until_ready()
    return fresh


@pytest.mark.parametrize("roles", [("coordinator", "worker"), ("serve",)], ids=["apart", "serve"])
def test_a_rolling_restart_under_load_loses_and_doubles_nothing(rig: Rig, roles: tuple[Role, ...]) -> None:
    """R5, R6: three processes of each kind, one after the other; two of each have stable names."""
    with fleet_of(rig) as fleet:
        for n in range(3):
            for role in roles:
                fleet.start(role, instance=f"pod-{n}" if n else None)
        fleet.until_ready()
        load = Load(rig)
        with load.flowing():
            for member in list(fleet.members):
                roll(fleet, member)
        rig.until_status("completed", *load.ids, within_ms=60_000)
        assert len(load.ids) > 50
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
