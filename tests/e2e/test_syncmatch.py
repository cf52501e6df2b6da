"""``serve``: steps are handed over within the process, and a crash or a rebalance loses and doubles none (protocol 13)."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import msgspec
from e2e.load import Load, doubled
from fleet import Fleet, Member, fleet_of, gate
from rig import Rig
from support import until

HELD = [f"held-{n}" for n in range(12)]


def open_attempts(rig: Rig) -> list[dict[str, Any]]:
    """Rows of attempts that need one."""
    return rig.rows("select * from eec_open_attempt where ns = {ns}")


def at_the_gate(fleet: Fleet) -> Counter[str]:
    """How often each gated step has begun, by its key."""
    return Counter(each["key"] for each in fleet.effects() if each["step"] == "gated")


def hold(fleet: Fleet, name: str) -> None:
    """Start runs whose second step waits at that gate, and return when all stand there."""
    fleet.rig.start(*HELD, workflow="held", input=name)
    until(lambda: len(at_the_gate(fleet)) == len(HELD), within_ms=30_000, what="all at the gate")


def by(member: Member, path: str) -> float:
    """Attempts that a process has dispatched by that path."""
    return member.metric("ductor_attempts_dispatched_total", path=path)


def until_owned(member: Member, partitions: int) -> None:
    """Wait until it owns so many partitions."""
    until(
        lambda: member.metric("ductor_partitions_owned") == partitions or member.metric("ductor_partitions_owned"),
        within_ms=30_000,
        what=f"{partitions} partitions owned by {member.name}",
    )


def check_results(rig: Rig, name: str) -> None:
    """All that was held is completed, with its result."""
    rig.until_status("completed", *HELD, within_ms=40_000)
    assert [rig.run(run_id)["result"] for run_id in HELD] == [[1, name, 2]] * len(HELD)
    rig.check()
    assert open_attempts(rig) == []
    assert rig.letters() == []


def test_steps_are_handed_over_in_process_and_by_kafka_when_no_slot_is_free(rig: Rig) -> None:
    """SyncMatch where a slot was reserved, Kafka as fallback; each step has its effect once."""
    with fleet_of(rig) as fleet:
        serve = fleet.start("serve", "--concurrency", "4")
        fleet.until_ready()
        chains = [f"chain-{n}" for n in range(20)]
        rig.start(*chains, workflow="chain", input=3)
        rig.until_status("completed", *chains)
        in_process = by(serve, "syncmatch")
        assert in_process >= 4, "the first ones find all four slots free"
        rig.start("wide", workflow="fan", input=100)
        rig.until_status("completed", "wide")
        assert by(serve, "kafka") >= 50, "four slots cannot take a hundred steps at once"
        assert by(serve, "syncmatch") > in_process
        assert set(fleet.effect_counts().values()) == {1}
        assert len(fleet.effect_counts()) == 160 == by(serve, "syncmatch") + by(serve, "kafka")
        assert serve.metric("ductor_redrives_total") == 0
        rig.check()


def test_long_steps_get_a_row_and_kill_9_redrives_what_was_handed_over(rig: Rig) -> None:
    """R5: the rows of the dead process's token say what ran there; its outbox says what had only begun."""
    name = gate(rig)
    with fleet_of(rig) as fleet:
        first = fleet.start("serve")
        fleet.until_ready()
        hold(fleet, name.name)
        until(lambda: len(open_attempts(rig)) == len(HELD), what="a row for each")
        assert {str(row["token"]) for row in open_attempts(rig)} <= tokens(rig)
        assert by(first, "kafka") == 0
        more = [f"more-{n}" for n in range(30)]
        rig.start(*more, workflow="chain", input=30)
        until(lambda: sum(each["run"] in more for each in fleet.effects()) > 50, what="chains under way")
        by_topic = by(first, "kafka")
        first.kill()
        left = in_flight(rig)
        assert left <= 5 * len(more), "more than a batch or two was in flight"

        second = fleet.start("serve")
        until(lambda: set(at_the_gate(fleet).values()) == {2}, within_ms=40_000, what="all at the gate once more")
        name.touch()
        check_results(rig, name.name)
        rig.until_status("completed", *more)
        assert {each["generation"] for each in fleet.effects()} == {1}, "sent again at once, not given up for lost"
        counts = fleet.effect_counts()
        assert len(counts) == len(HELD) * 3 + 30 * 30
        assert len(HELD) <= second.metric("ductor_redrives_total") <= len(HELD) + left
        # What found no free slot went by the topic: its offset may not have been committed yet.
        assert sum(counts.values()) <= len(counts) + len(HELD) + left + by_topic, (
            "more was done twice than was in flight"
        )


def beats(rig: Rig) -> dict[str, datetime]:
    """When each attempt was heard of last, by run."""
    return {row["run_id"]: row["beat_at"] for row in open_attempts(rig) if row["run_id"] in HELD}


def in_flight(rig: Rig) -> int:
    """Records of the outbox."""
    rows = rig.rows("select records from eec_outbox where ns = {ns}")
    return sum(len(msgspec.msgpack.decode(bytes(row["records"]))) for row in rows)


def tokens(rig: Rig) -> set[str]:
    """The owners' tokens of all partitions."""
    return {str(row["token"]) for row in rig.rows("select token from eec_partition where ns = {ns}")}


def test_a_graceful_rebalance_redrives_nothing_that_still_runs(rig: Rig) -> None:
    """Protocol 13: the new owner hears of what runs elsewhere, by heartbeats and at last by its result.

    What has run for long has a row by then; what has just begun, of the orders that come in meanwhile, gets one.
    """
    name, load = gate(rig), Load(rig)
    with fleet_of(rig) as fleet:
        first = fleet.start("serve", "--concurrency", "100")
        fleet.until_ready()
        hold(fleet, name.name)
        with load.flowing():
            second = fleet.start("serve", "--concurrency", "100")
            until_owned(second, rig.partitions // 2)
            until_owned(first, rig.partitions // 2)
        taken = rig.rows("select partition from eec_partition where ns = {ns} and epoch > 1")
        moved = {row["partition"] for row in taken}
        assert len(moved) == rig.partitions // 2, "partitions that stay are not taken anew"
        held = [row for row in open_attempts(rig) if row["run_id"] in HELD]
        assert {row["partition"] for row in held if row["token"] is None} == moved & {*map(rig.home, HELD)}
        since = beats(rig)
        until(
            lambda: min(beats(rig).values()) > max(since.values()), within_ms=20_000, what="a beat of each since then"
        )
        name.touch()
        rig.until_status("completed", *load.ids)
        check_results(rig, name.name)
        assert fleet.total("ductor_redrives_total") == 0
        assert fleet.total("ductor_late_results_total") == 0
        assert doubled(fleet) == {}


def test_sigterm_hands_over_what_still_runs(rig: Rig) -> None:
    """Its partitions go at once, its steps are finished where they run, and their results arrive by the topic."""
    name = gate(rig)
    with fleet_of(rig) as fleet:
        first = fleet.start("serve")
        fleet.until_ready()
        hold(fleet, name.name)
        second = fleet.start("serve")
        until_owned(second, rig.partitions // 2)
        first.terminate()
        until_owned(second, rig.partitions)
        name.touch()
        check_results(rig, name.name)
        first.until_ended()
        assert set(fleet.effect_counts().values()) == {1}
        assert second.metric("ductor_redrives_total") == 0
