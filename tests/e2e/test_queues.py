"""``worker --queue a`` and ``serve --queue a`` execute that queue and leave the others alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fleet import Role, fleet_of, module
from rig import Rig, opened
from support import until

if TYPE_CHECKING:
    from servers import KafkaServer

APP = """
from told import effect
from ductor_stream import App, Run

app = App("shop")

@app.step(queue="a")
async def first(n: int) -> int:
    effect(step="first")
    return n

@app.step(queue="b")
async def second(n: int) -> int:
    effect(step="second")
    return n + 1

@app.workflow
async def both(run: Run, n: int) -> int:
    return await run.step(second, await run.step(first, n))
"""
IDS = [f"run-{n}" for n in range(10)]
MORE = [f"more-{n}" for n in range(10)]


@pytest.fixture
def queues(kafka: KafkaServer, runs_database: str, tmp_path: Path) -> Iterator[Rig]:
    """A namespace with the queues ``a`` and ``b``."""
    with opened(kafka.bootstrap, runs_database, tmp_path, partitions=2, queues=("a", "b")) as made:
        yield made


@pytest.mark.parametrize("role", ["worker", "serve"])
def test_a_process_with_a_queue_leaves_the_others_alone(queues: Rig, role: Role) -> None:
    """Their attempts are sent, and begun by nobody before a worker of theirs comes: in its process too, by SyncMatch."""
    rig = queues
    with fleet_of(rig) as fleet:
        folder = module(rig, "app", APP)
        if role == "worker":
            fleet.start("coordinator", folder=folder)
        of_a = fleet.start(role, "--queue", "a", folder=folder)
        fleet.until_ready()
        fleet.until_shared("a")  # a worker is ready before it is a member

        def phases() -> dict[str, set[tuple[str, str]]]:
            return {each: {(row["step"], row["phase"]) for row in rig.attempts(each)} for each in (*IDS, *MORE)}

        waits = {("first", "dispatched"), ("first", "finished"), ("second", "dispatched")}
        for group in (IDS, MORE):  # whoever began the second step of those would have done so before the first of these
            rig.start(*group, workflow="both", input=1)
            until(lambda: all(phases()[each] == waits for each in group), within_ms=30_000, what="second steps sent")  # noqa: B023
        assert {each["step"] for each in fleet.effects()} == {"first"}
        assert fleet.shares("b") == []
        assert "second" in fleet.show(IDS[0])["waiting_for"]
        assert rig.rows("select run_id from eec_open_attempt where ns = {ns}") == []

        of_b = fleet.start("worker", "--queue", "b", folder=folder)
        rig.until_status("completed", *IDS, *MORE, within_ms=60_000)
        assert rig.run(IDS[0])["result"] == 2
        done = {(each["step"], each["pid"]) for each in fleet.effects()}
        assert done == {("first", of_a.process.pid), ("second", of_b.process.pid)}
        assert len(fleet.shares("a")) == 1
        rig.check()
