"""What `runs show` and `runs history` tell, from the records that a real workflow leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ductor_stream.app import App
from ductor_stream.cli.description import nodes_of
from ductor_stream.cli.history import history_rows, history_values
from ductor_stream.definitions.policy import Retry
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    CommandReceived,
    Failure,
    RunStarted,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.planners.run import Run
from ductor_stream.engine.state import Record, RunState
from ductor_stream.engine.tick import Stamped, rebuild, tick
from ductor_stream.store.rows import Beat

app = App("shop")
approved = app.signal("approved", bool)
START_MS = 1_800_000_000_000


@app.step(queue="warehouse")
def reserve(sku: str) -> str:
    return sku


@app.step(queue="payments", retry=Retry(max_attempts=2, initial=4, jitter=0))
def charge(amount: str) -> str:
    return amount


@app.workflow(version="1")
async def fulfil(run: Run, order: str) -> str:
    await asyncio.gather(run.step(reserve, "a"), run.step(reserve, "b"))
    receipt = await run.step(charge, "12.50")
    await run.wait_signal(approved)
    await asyncio.sleep(3600)
    return receipt


class Story:
    """A run to which events happen one after the other, a second apart."""

    def __init__(self) -> None:
        self.state: RunState | None = None
        self.records: list[Record] = []
        self.now = START_MS
        self.hear(RunStarted("fulfil", "1", b'"order-1"', "s1"))

    def hear(self, *events: AnyEvent) -> None:
        definitions = {key: workflow.definition for key, workflow in app.workflows.items()}
        stamped = [Stamped(self.now, event) for event in events]
        done = tick(definitions, "order-1", self.state, stamped, history=self.records)
        if done.live is not None:
            done.live.abandon()
        self.state = done.state
        self.records.extend(done.records)
        self.now += 1000

    def node(self, name: str, nth: int = 0) -> str:
        return [node.node_id for node in nodes_of(self.open, self.lineage) if node.name == name][nth]

    @property
    def open(self) -> RunState:
        return rebuild("order-1", self.lineage)

    @property
    def lineage(self) -> list[Record]:
        return lineage(self.records, self.records[-1].execution)

    def statuses(self) -> list[tuple[str, str, int, int]]:
        return [(n.name, n.status, n.generation, n.attempts) for n in nodes_of(self.open, self.lineage)]

    def entries(self) -> Sequence[tuple[int, Sequence[Record]]]:
        return [(number, [record]) for number, record in enumerate(self.records, start=1)]


def finish(node: str, generation: int = 1, failure: Failure | None = None) -> AttemptFinished:
    outcome = "failed" if failure else "completed"
    return AttemptFinished(1, node, generation, outcome, None if failure else b'"ok"', failure)


def reserved() -> Story:
    story = Story()
    story.hear(finish(story.node("reserve")), finish(story.node("reserve", 1)))
    return story


def test_open_steps_are_dispatched_and_named() -> None:
    story = Story()
    assert story.statuses() == [("reserve", "dispatched", 1, 1), ("reserve", "dispatched", 1, 1)]
    beat = Beat(1, story.node("reserve"), 1, START_MS, START_MS, "host-1", None)
    assert [node.worker for node in nodes_of(story.open, story.records, {beat.node_id: beat})] == ["host-1", None]


def test_a_failed_attempt_waits_for_its_retry() -> None:
    story = reserved()
    story.hear(finish(story.node("charge"), failure=Failure("user", "GatewayBusy", "try later")))
    assert story.statuses()[2] == ("charge", "backoff", 2, 1)
    assert nodes_of(story.open, story.records)[2].error == "GatewayBusy: try later"
    story.now += 4000
    story.hear(TimerFired(1, story.node("charge"), 2))
    assert story.statuses()[2] == ("charge", "dispatched", 2, 2)
    story.hear(finish(story.node("charge"), generation=2))
    assert story.statuses()[2] == ("charge", "completed", 2, 2)


def test_a_rejected_task_is_no_attempt() -> None:
    story = reserved()
    rejected = AttemptFinished(1, story.node("charge"), 1, "rejected", None, Failure("step_unknown", "StepUnknown", ""))
    story.hear(rejected)
    assert story.statuses()[2] == ("charge", "backoff", 2, 0)


def test_signals_and_timers() -> None:
    story = reserved()
    story.hear(finish(story.node("charge")))
    assert story.statuses()[3][:2] == ("approved", "waiting")
    story.hear(SignalReceived("a7", "approved", b"true"))
    assert story.statuses()[3][:2] == ("approved", "received")
    assert story.statuses()[4][1] == "waiting"
    timer = nodes_of(story.open, story.records)[4]
    story.now += 3_600_000
    story.hear(TimerFired(1, timer.node_id, 1))
    assert nodes_of(story.open, story.records)[4].status == "fired"


def test_what_was_open_at_the_end_is_dropped() -> None:
    story = Story()
    story.hear(CommandReceived("terminate", "c2", "no longer wanted"))
    assert [status for _, status, _, _ in story.statuses()] == ["dropped", "dropped"]


def test_a_retry_goes_on_from_what_failed() -> None:
    story = reserved()
    story.hear(finish(story.node("charge"), failure=Failure("user", "CardDeclined", "no", retryable=False)))
    assert story.open.header.status == "failed"
    assert story.statuses()[2] == ("charge", "failed", 1, 1)
    story.hear(CommandReceived("retry", "c1"))
    assert story.open.header.execution == 2
    assert story.statuses()[1:] == [("reserve", "completed", 1, 1), ("charge", "dispatched", 2, 1)]
    assert [row["event"] for row in history_rows(story.entries())][-1].startswith("retry: execution 2 goes on from 1")


def test_history_for_people() -> None:
    story = reserved()
    story.hear(CommandReceived("cancel", "c1", "customer asked"))
    rows = [(row["event"], row["then"]) for row in history_rows(story.entries())]
    first, second = story.node("reserve"), story.node("reserve", 1)
    assert rows[0] == ("started fulfil version 1", f"step reserve ({first}), step reserve ({second})")
    assert rows[1] == (f"reserve ({first}) completed", "")
    assert rows[3][0] == "cancel asked: customer asked"
    assert "cancelled" in rows[3][1]


def test_history_for_programs() -> None:
    story = reserved()
    values = list(history_values(story.entries()))
    assert values[0]["event"] == {
        "type": "start",
        "workflow": "fulfil",
        "version": "1",
        "input": "order-1",
        "start_id": "s1",
        "on_conflict": "use_existing",
        "context": {},
    }
    assert [value["seq"] for value in values] == [1, 2, 3]
    assert values[0]["decisions"][0]["input"] == ["a"]
