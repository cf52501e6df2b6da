"""Keeps a run as an owner does between its ticks, and makes happen what may happen to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ductor_stream.engine import values
from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    AttemptLost,
    AttemptTimedOut,
    ChildFinished,
    CommandKind,
    CommandReceived,
    Failure,
    RunStarted,
    SignalReceived,
)
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.state import Header, Node, Record, RunState, encode_records, state_bytes
from ductor_stream.engine.tick import Stamped, Tick, due_events, rebuild, replay, tick, wake_at

_living: list[Any] = []


@contextmanager
def abandoning() -> Iterator[None]:
    """Drop every coroutine that ticks inside the block gave, as an owner does: the collector must never find one."""
    try:
        yield
    finally:
        while _living:
            _living.pop().abandon()


def ticked(*args: Any, **kwargs: Any) -> Tick:
    """``tick``, its coroutine being dropped at the end of ``abandoning``."""
    done = tick(*args, **kwargs)
    if done.live is not None and not any(done.live is known for known in _living):
        _living.append(done.live)
    return done


class Driver:
    """One run: its state, its records (``entries``: as committed, tick by tick), and all that its ticks wanted done."""

    def __init__(self, *definitions: WorkflowDefinition, run_id: str = "r") -> None:
        self.definitions = {(d.name, d.version): d for d in definitions}
        self.run_id = run_id
        self.committed: RunState | None = None
        self.live: Any = None
        self.records: list[Record] = []
        self.entries: list[bytes] = []
        self.actions: list[Any] = []
        self.applied: list[Stamped] = []
        self.clock: int | None = None

    # -- as it stands -----------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """The run's state; there must be a run."""
        assert self.committed is not None
        return self.committed

    @property
    def header(self) -> Header:
        """The header of the run's state."""
        return self.state.header

    @property
    def status(self) -> str:
        """The run's status."""
        return self.header.status

    @property
    def result(self) -> Any:
        """The result of the run, decoded; an AssertionError says how it ended instead."""
        assert self.header.status == "completed", (self.status, self.header.parked, self.header.failure)
        assert self.header.result is not None
        return values.decode(self.header.result, Any)

    @property
    def parked(self) -> tuple[str, str]:
        """Code and message of the suspension."""
        assert self.header.parked is not None, (self.status, self.header.failure)
        return self.header.parked.code, self.header.parked.message

    def node(self, node_id: str) -> Node:
        """An open node."""
        return self.state.nodes[node_id]

    def history(self) -> list[Record]:
        """The records that the current execution is folded from."""
        return [] if self.committed is None else lineage(self.records, self.header.execution)

    def done(self, kind: type) -> list[Any]:
        """The actions of one kind, so far."""
        return [action for action in self.actions if isinstance(action, kind)]

    def dispatched(self) -> list[str]:
        """Node ids of the attempts sent so far."""
        return [action.node.node_id for action in self.done(DispatchAttempt)]

    def lifecycle(self) -> list[str]:
        """Types of the lifecycle events so far."""
        return [action.type for action in self.done(EmitLifecycle)]

    # -- what happens to it -----------------------------------------------------------------

    def apply(self, *events: Stamped) -> Tick:
        """One tick over these events."""
        history = self.history()
        done = ticked(self.definitions, self.run_id, self.committed, events, live=self.live, history=history)
        self.committed, self.live = done.state, done.live
        self.records += done.records
        if done.records:
            self.entries.append(encode_records(done.records))
        self.actions += done.actions
        self.applied = [*self.applied, *events]
        return done

    def hear(self, event: AnyEvent, *, at: int | None = None) -> Tick:
        """One event, when ``at`` or the ``clock`` says, else a millisecond after the last one."""
        if at is None:
            at = self.header.now + 1 if self.clock is None else self.clock
        return self.apply(Stamped(at, event))

    def lose(self) -> None:
        """The owner's cache is gone: nothing is left of the coroutine."""
        if self.live is not None:
            self.live.abandon()
        self.live = None

    def deploy(self, *definitions: WorkflowDefinition) -> None:
        """The owner was started again with this code."""
        self.lose()
        self.definitions = {(d.name, d.version): d for d in definitions}

    def start(self, now: int = 1_000, **more: Any) -> Tick:
        """Start the run."""
        return self.apply(Stamped(now, RunStarted("wf", "1", **{"input": b"null", "start_id": "s1", **more})))

    def finish(
        self, node_id: str, output: Any = None, *, failure: Failure | None = None, at: int | None = None
    ) -> Tick:
        """A worker's answer for a step node."""
        outcome = "failed" if failure else "completed"
        raw = None if failure else values.encode(output)
        node = self.node(node_id)
        event = AttemptFinished(self.header.execution, node_id, node.generation, outcome, raw, failure)  # type: ignore[arg-type]
        return self.hear(event, at=at)

    def fail(self, node_id: str, type: str = "Oops", **more: Any) -> Tick:
        """A worker's report that a step node failed."""
        return self.finish(node_id, failure=Failure("user", type, "no", **more))

    def time_out(self, node_id: str, code: str) -> Tick:
        """The owner gives the attempt of a step node up."""
        return self.hear(AttemptTimedOut(self.header.execution, node_id, self.node(node_id).generation, code))

    def send(self, name: str, payload: Any = None, id: str = "") -> Tick:
        """A signal, with an id of its own unless one is given."""
        return self.hear(SignalReceived(id or f"signal-{len(self.applied)}", name, values.encode(payload)))

    def order(self, kind: CommandKind, **more: Any) -> Tick:
        """A command, with an id of its own."""
        return self.hear(CommandReceived(kind, f"command-{len(self.applied)}", **more))

    def pass_time(self, at: int | None = None) -> None:
        """Go to the next due time, unless ``at`` says when, and apply what is due then."""
        found = wake_at(self.state) if at is None else at
        assert found is not None
        for event in due_events(self.state, found):
            self.hear(event, at=found)

    # -- by chance --------------------------------------------------------------------------

    def run_through(self, choices: Sequence[int]) -> Driver:
        """Start the run and let each number choose one of all the things that can happen next, while it is open."""
        self.start()
        for choice in choices:
            found = self.possible(choice)
            if self.state.closed or not found:
                break
            found[choice % len(found)]()
        return self

    def possible(self, number: int) -> list[Callable[[], Any]]:
        """All that can happen next; ``number`` varies what workers say and signals carry."""
        found: list[Callable[[], Any]] = []
        for node in list(self.state.nodes.values()):
            if node.kind == "step" and node.status == "dispatched":
                found += self._answers(node, number)
            elif node.kind == "child":
                status = "completed" if number % 3 else "failed"
                told = ChildFinished(self.header.execution, node.node_id, "child", status, b"%d" % number)
                found.append(lambda event=told: self.hear(event))
        if wake_at(self.state) is not None:
            found.append(self.pass_time)
        if self.status == "running":
            found.append(lambda: self.send("xy"[number % 2], number))
        return found

    def _answers(self, node: Node, number: int) -> list[Callable[[], Any]]:
        node_id = node.node_id
        failure = Failure("user", "Oops", "no", retryable=number % 4 != 0)
        rejected = AttemptFinished(self.header.execution, node_id, node.generation, "rejected", None, failure)
        return [
            lambda: self.finish(node_id, number),
            lambda: self.finish(node_id, number),
            lambda: self.finish(node_id, failure=failure),
            lambda: self.hear(rejected),
            lambda: self.time_out(node_id, "worker_lost"),
            lambda: self.hear(AttemptLost(self.header.execution, node_id, node.generation)),
        ]


def folded_as_lived(driver: Driver) -> None:
    """What its records say is what it is, and its code decides so again."""
    built = rebuild(driver.run_id, driver.history())
    built.header.lifecycle_seq = driver.header.lifecycle_seq
    assert state_bytes(built) == state_bytes(driver.state)
    assert replay(driver.definitions["wf", "1"], driver.run_id, driver.history()) is None
