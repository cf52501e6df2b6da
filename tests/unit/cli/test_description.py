"""What `runs show` and `runs history` tell, from the records that a real workflow leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ductor_stream.app import App
from ductor_stream.cli.description import nodes_of
from ductor_stream.cli.error_places import error_fields, last_places, node_row
from ductor_stream.cli.history import History, history_rows, history_values
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
    assert [row["event"] for row in history_rows("order-1", story.entries())][-1].startswith(
        "retry: execution 2 goes on from 1"
    )


def test_history_for_people() -> None:
    story = reserved()
    story.hear(CommandReceived("cancel", "c1", "customer asked"))
    rows = [(row["event"], row["then"]) for row in history_rows("order-1", story.entries())]
    first, second = story.node("reserve"), story.node("reserve", 1)
    assert rows[0] == ("started fulfil version 1", f"step reserve ({first}), step reserve ({second})")
    assert rows[1] == (f"reserve ({first}) completed", "")
    assert rows[3][0] == "cancel asked: customer asked"
    assert "cancelled" in rows[3][1]


def test_nodes_are_named_in_later_pages_and_later_executions() -> None:
    story = reserved()
    history, told = History("order-1"), list[str]()
    story.hear(finish(story.node("charge"), failure=Failure("user", "CardDeclined", "no", retryable=False)))
    story.hear(CommandReceived("retry", "c1"))
    story.hear(AttemptFinished(2, story.node("charge"), 2, "completed", b'"ok"'))
    for entry in story.entries():  # as `runs watch` reads it: a few records at a time
        history.read([entry])
        told += [row["event"] for row in history.rows([entry])]
    assert told[1].startswith("reserve (")
    assert told[3].startswith("charge (")
    assert story.records[5].execution == 2
    assert told[5] == f"charge ({story.node('charge')}) completed"
    assert not any("node (" in line for line in told)


def test_a_refused_request_is_told_as_refused() -> None:
    story = reserved()
    story.hear(CommandReceived("reset", "c1", to_node="nowhere"))
    story.hear(CommandReceived("reset", "c0", to_transition=99))
    story.hear(CommandReceived("resume", "c2"))
    story.hear(CommandReceived("pause", "c3"))
    story.hear(CommandReceived("resume", "c4"))
    story.hear(CommandReceived("terminate", "c5"))
    story.hear(SignalReceived("a1", "approved", b"true"))
    story.hear(CommandReceived("cancel", "c6"))
    rows = [(row["event"], row["then"]) for row in history_rows("order-1", story.entries())][3:]
    assert rows == [
        ("reset to node nowhere asked", "refused: node not found"),
        ("reset to transition 99 asked", "refused: transition not found"),
        ("resume asked", "refused: run is running"),
        ("pause asked", ""),
        ("resume asked", ""),
        ("terminate asked", ""),
        ("signal approved", "refused: run closed"),
        ("cancel asked", "refused: run closed"),
    ]
    values = history_values("order-1", story.entries())
    assert [value["refused"] for value in values[3:5]] == ["node_not_found", "transition_not_found"]
    assert values[0]["refused"] is None


def test_a_refused_start_is_told_as_refused() -> None:
    story = reserved()
    story.hear(RunStarted("fulfil", "1", b"null", "s2", "reject"))
    assert history_rows("order-1", story.entries())[-1]["then"] == "refused: run exists"


def test_timers_and_signals_are_not_attempted() -> None:
    story = reserved()
    story.hear(finish(story.node("charge")))
    story.hear(SignalReceived("a7", "approved", b"true"))
    assert [view.attempts for view in nodes_of(story.open, story.records)] == [1, 1, 1, 0, 0]
    shown = [node_row(msgspec.to_builtins(view), {}) for view in nodes_of(story.open, story.records)]
    assert [row["attempts"] for row in shown] == [1, 1, 1, None, None]


STACK = """Traceback (most recent call last):
  File "/app/shop.py", line 6, in charge
    return lookup(order)
  File "/usr/lib/python3.12/site-packages/bank/api.py", line 80, in lookup
    raise KeyError(order)
KeyError: 'order-1'
"""


def test_an_error_is_told_with_the_place_in_the_users_code() -> None:
    error = {"code": "user", "type": "KeyError", "message": "'order-1'", "retryable": True, "details": {"at": 7}}
    attempts = [{"execution": 1, "node_id": "2", "error": error | {"stack": STACK}}]
    places = last_places(attempts, 1)
    assert error_fields(error, places.values()) == {
        "error": "KeyError: 'order-1' (at /app/shop.py:6 in charge)",
        "error_code": None,
        "error_details": {"at": 7},
    }
    limit = {"code": "history_limit", "type": "Condemned", "message": "too long"}
    told = error_fields(limit, ())
    assert (told["error"], told["error_code"]) == (
        "Condemned: too long",
        "history_limit (`ductor-stream explain history_limit`)",
    )
    node = {"node_id": "2", "kind": "step", "attempts": 1, "error": "KeyError: 'order-1'"}
    assert node_row(node, places)["error"] == "KeyError: 'order-1' (at /app/shop.py:6 in charge)"
    assert error_fields(error, last_places(attempts, 2).values())["error"] == "KeyError: 'order-1'"
    assert error_fields(None, ()) == {}


def test_history_for_programs() -> None:
    story = reserved()
    values = history_values("order-1", story.entries())
    assert values[0]["event"] == {
        "type": "start",
        "workflow": "fulfil",
        "version": "1",
        "input": "order-1",
        "start_id": "s1",
        "on_conflict": "use_existing",
        "context": {},
        "since": 0,
    }
    assert [value["seq"] for value in values] == [1, 2, 3]
    assert values[0]["decisions"][0]["input"] == ["a"]
