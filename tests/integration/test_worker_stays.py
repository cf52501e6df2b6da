"""Worker processes on a real broker that are busy for long: they are heard of, and stay in their group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import until
from task_rig import Rig

if TYPE_CHECKING:
    from servers import KafkaServer

IMPATIENT = {"max.poll.interval.ms": 6_000}
"""Who polls less often is out of the group."""


@pytest.fixture
def rig(kafka: KafkaServer, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(kafka.bootstrap, tmp_path)
    yield made
    made.close()


def test_a_worker_keeps_an_attempt_alive_for_longer_than_its_heartbeat_timeout(rig: Rig) -> None:
    """R11: a step in a thread that says nothing itself is heard of all the time, and its result is taken once."""
    rig.worker("a")
    rig.task("gated", "slow", heartbeat_timeout_ms=900)
    heard: list[int] = []

    def held() -> bool:
        heard[:] = [at for at, _ in rig.stamped("attempt.heartbeat")]
        return bool(heard) and heard[-1] - heard[0] >= 3_000

    until(held, within_ms=30_000, what="beats over 3 s")
    assert rig.reports() == []
    beats = rig.reports("attempt.heartbeat")
    assert {(each["run_id"], each["execution"], each["generation"]) for each in beats} == {("run-1", 1, 1)}
    assert len({(each["node_id"], each["worker"]) for each in beats}) == 1
    assert len(beats) >= 4, "one in 900 ms at the least"
    rig.let("slow")
    until(lambda: rig.outputs() == ["a slow"])
    until(lambda: rig.committed() == (1, []))
    assert (rig.ran(), len(rig.reports())) == (["a slow"], 1)
    assert rig.reports()[0]["node_id"] == beats[0]["node_id"]


def test_a_worker_with_no_free_slot_polls_on(rig: Rig) -> None:
    """Its one step lasts longer than ``max.poll.interval.ms``: it stays in the group, nothing is run twice, the next follows."""
    rig.worker("a", concurrency=1, kafka=IMPATIENT)
    rig.task("gated", "slow", start_to_close_ms=120_000)
    rig.task("quick", 2)
    until(lambda: rig.ran() == ["a slow"])
    before = rig.members()
    rig.pass_by(1.5 * IMPATIENT["max.poll.interval.ms"])
    assert rig.members() == before
    assert rig.ran() == ["a slow"]
    rig.let("slow")
    until(lambda: rig.outputs() == ["a slow", 2])
    until(lambda: rig.committed() == (2, []))
    assert rig.ran() == ["a slow", "a 2"]
    assert rig.members() == before


def test_a_worker_whose_name_another_takes_ends_and_says_why(rig: Rig) -> None:
    """Else each would drive the other out for ever."""
    first = rig.worker("a", instance="one")
    rig.worker("b", instance="one", ready=False)
    assert first.wait(60) != 0
    assert "no two that run at a time may have the same" in rig.log_of("a")
    rig.until_ready("b")
    rig.task("quick", 1)
    until(lambda: rig.outputs() == [1])
    assert rig.ran() == ["b 1"]
