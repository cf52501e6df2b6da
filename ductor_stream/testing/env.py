"""``TestEnv``: runs of an app in this process, on a virtual clock.

After every event the coroutine is thrown away and rebuilt by replay, so that code that is not
deterministic shows itself in the test. Time stands still while anything can be done, and passes
only by ``skip``, or while a result is awaited that nothing but time can bring.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from ductor_stream.app import App
from ductor_stream.declarations import Resource, Signal, Step, Workflow
from ductor_stream.engine import values
from ductor_stream.engine.actions import Action, CommandChild, DispatchAttempt, StartChild, TellParent
from ductor_stream.engine.events import (
    AnyEvent,
    CommandKind,
    CommandReceived,
    Parent,
    RunStarted,
    SignalReceived,
)
from ductor_stream.engine.state import Record, RunState
from ductor_stream.engine.tick import Stamped, due_events, tick, wake_at
from ductor_stream.engine.waiting import waiting_for
from ductor_stream.errors import RunCancelled, RunFailed, RunTerminated, RunTimedOut, UsageError
from ductor_stream.testing.elsewhere import differences, hears_sets, makes_sets
from ductor_stream.testing.replay import export_history
from ductor_stream.testing.stepping import Steps

_START = datetime(2030, 1, 1, tzinfo=UTC)
_OUTCOMES = {"failed": RunFailed, "cancelled": RunCancelled, "terminated": RunTerminated, "timed_out": RunTimedOut}


class Stuck(AssertionError):
    """The run cannot go on by itself: it is suspended, or waits for something that only the test can bring."""


class _Run:
    """A run in the test."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.state: RunState | None = None
        self.records: list[Record] = []
        self.early: list[AnyEvent] = []


class TestHandle:
    """A run, as the test sees it."""

    __test__ = False

    def __init__(self, env: TestEnv, run: _Run, workflow: Workflow[Any, Any] | None) -> None:
        self._env, self._run, self._workflow = env, run, workflow
        self.run_id = run.run_id

    @property
    def state(self) -> RunState:
        """The state as the engine has it. Raises Stuck before the start."""
        if self._run.state is None:
            raise Stuck(f"run {self.run_id} has not been started")
        return self._run.state

    @property
    def status(self) -> str:
        """running, suspended, paused, completed, failed, cancelled, terminated or timed_out."""
        return self.state.header.status

    @property
    def records(self) -> list[Record]:
        """The history so far (``testing.export_history`` writes it to a file)."""
        return list(self._run.records)

    @property
    def waiting_for(self) -> str | None:
        """Why the run waits, in a sentence; None when it is closed."""
        return waiting_for(self.state, self._env.now_ms)

    async def signal(self, signal: Signal[Any] | str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send a signal, and let the run go as far as it can."""
        raw = signal.encode(payload) if isinstance(signal, Signal) else values.encode(payload)
        name = signal.name if isinstance(signal, Signal) else signal
        await self._env.send(self.run_id, SignalReceived(signal_id or self._env.next_id("signal"), name, raw))

    async def command(
        self, kind: CommandKind, reason: str = "", *, to_node: str | None = None, to_transition: int | None = None
    ) -> None:
        """Give an order: cancel, terminate, pause, resume, retry or reset."""
        order = CommandReceived(kind, self._env.next_id("command"), reason, to_node, to_transition)
        await self._env.send(self.run_id, order)

    async def cancel(self, reason: str = "") -> None:
        """Cancel the run; its cleanup runs."""
        await self.command("cancel", reason)

    async def result(self) -> Any:
        """The run's result, time passing as it must. Raises RunFailed and its like, and Stuck with what it waits for."""
        await self._env.until_closed(self._run)
        header = self.state.header
        if header.status != "completed":
            failure = header.failure
            details = values.decode(failure.details, Any) if failure is not None and failure.details else None
            message = failure.message if failure is not None else header.status
            kind = failure.type if failure is not None else ""
            raise _OUTCOMES[header.status](message, run_id=self.run_id, error_type=kind, details=details)
        output_type = self._workflow.definition.output_type if self._workflow is not None else Any
        return values.decode(header.result or b"null", output_type)


class TestEnv:
    """Runs an app's workflows and steps in the test's own process and event loop.

    ``async with TestEnv(app) as env``. Steps run for real unless ``replace``\\ d; ``start`` and ``signal`` return when the
    runs have gone as far as they can without time passing.
    """

    __test__ = False

    def __init__(self, app: App, *, start_at: datetime = _START) -> None:
        self._app = app
        self._definitions = {key: workflow.definition for key, workflow in app.workflows.items()}
        self._steps = Steps(app)
        self._runs: dict[str, _Run] = {}
        self._queue: deque[tuple[str, AnyEvent]] = deque()
        self._ids = itertools.count(1)
        self.now_ms = int(start_at.timestamp() * 1000)

    async def __aenter__(self) -> Self:
        """Nothing is opened before it is used."""
        return self

    async def __aexit__(self, raised: object = None, *_: object) -> None:
        """Close the resources that steps used. Raises Stuck for a run that sets of strings lead elsewhere in production."""
        await self._steps.close()
        if raised is None:
            self._try_other_orders()

    def _try_other_orders(self) -> None:
        begun = [run for run in self._runs.values() if run.state is not None and run.state.header.status != "suspended"]
        unordered = [run for run in begun if self._may_meet_sets(run)]
        histories = [export_history(run.run_id, run.records) for run in unordered]
        if found := differences(self._app, histories):
            raise Stuck("in a process with another hash seed, nondeterminism: " + "\n".join(found))

    def _may_meet_sets(self, run: _Run) -> bool:
        header = run.state.header if run.state is not None else None
        definition = self._definitions.get((header.workflow, header.version)) if header is not None else None
        return definition is not None and (makes_sets(definition.function) or hears_sets(self._app, definition))

    def replace(self, original: Step[..., Any] | Resource[Any], substitute: Callable[..., Any] | Any) -> None:
        """Put a function (plain or async, with the same arguments) in a step's place, or a value in a resource's."""
        self._steps.replace(original, substitute)

    def next_id(self, kind: str) -> str:
        """An id that no other message of this environment has."""
        return f"{kind}-{next(self._ids)}"

    async def start(
        self, workflow: Workflow[Any, Any] | str, input: Any = None, *, run_id: str | None = None
    ) -> TestHandle:
        """Start a run and let it go as far as it can without time passing."""
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        raw = workflow.encode_input(input) if isinstance(workflow, Workflow) else values.encode(input)
        version = workflow.version if isinstance(workflow, Workflow) else self._app.default_version(name)
        run_id = run_id or self.next_id(name)
        timeout = workflow.definition.run_timeout_ms if isinstance(workflow, Workflow) else None
        event = RunStarted(name, version, raw, self.next_id("start"), run_timeout_ms=timeout)
        await self.send(run_id, event)
        declared = workflow if isinstance(workflow, Workflow) else self._app.workflows.get((name, version))
        return TestHandle(self, self._runs[run_id], declared)

    def handle(self, run_id: str) -> TestHandle:
        """A run that exists: a child, say. Raises UsageError where there is none."""
        run = self._runs.get(run_id)
        if run is None or run.state is None:
            raise UsageError(f"no run {run_id!r} in this test; there are {sorted(self._runs)}")
        header = run.state.header
        return TestHandle(self, run, self._app.workflows.get((header.workflow, header.version)))

    async def send(self, run_id: str, event: AnyEvent) -> None:
        """Hand an event to a run, then let all runs go as far as they can."""
        self._queue.append((run_id, event))
        await self._settle()

    async def skip(self, delta: timedelta | None = None, **parts: float) -> None:
        """Let time pass (``skip(days=2)``): what comes due on the way happens at its own time, in order."""
        until = self.now_ms + int((delta or timedelta(**parts)).total_seconds() * 1000)
        while (at := self._next_due()) is not None and at <= until:
            await self._pass_to(at)
        self.now_ms = until
        await self._settle()

    async def until_closed(self, run: _Run) -> None:
        """Let time pass until the run has closed. Raises Stuck when nothing that can come would move it."""
        while run.state is not None and not run.state.closed:
            at = self._next_due()
            if run.state.header.status != "running" or at is None:
                parked = run.state.header.parked
                stack = f"\n{parked.stack}" if parked is not None and parked.stack else ""
                raise Stuck(f"run {run.run_id}: {waiting_for(run.state, self.now_ms)}{stack}")
            await self._pass_to(at)
        if run.state is None:
            raise Stuck(f"run {run.run_id} has not been started")

    # -- inside -----------------------------------------------------------------------------

    def _next_due(self) -> int | None:
        due = [at for run in self._runs.values() if run.state is not None and (at := wake_at(run.state)) is not None]
        return max(self.now_ms, min(due)) if due else None

    async def _pass_to(self, at: int) -> None:
        self.now_ms = at
        for run in list(self._runs.values()):
            if run.state is not None:
                self._queue.extend((run.run_id, event) for event in due_events(run.state, at))
        await self._settle()

    async def _settle(self) -> None:
        while self._queue:
            run_id, event = self._queue.popleft()
            run = self._runs.setdefault(run_id, _Run(run_id))
            if run.state is None and not isinstance(event, RunStarted):
                run.early.append(event)
                continue
            early, run.early = run.early, []
            for action in self._tick(run, [event, *early]):
                await self._act(run, action)

    def _tick(self, run: _Run, events: list[AnyEvent]) -> list[Action]:
        stamped = [Stamped(self.now_ms, event) for event in events]
        done = tick(self._definitions, run.run_id, run.state, stamped, history=run.records)
        if done.live is not None:
            # The next tick replays: what is not deterministic shows there, and not in production.
            done.live.abandon()
        run.state = done.state
        run.records.extend(done.records)
        return done.actions

    async def _act(self, run: _Run, action: Action) -> None:
        match action:
            case DispatchAttempt(execution, node):
                event = await self._steps.execute(run.run_id, execution, node, self.now_ms)
                self._queue.append((run.run_id, event))
            case StartChild(execution, node, since=since):
                assert node.child is not None
                child = node.child
                parent = None if child.detached else Parent(run.run_id, execution, node.node_id)
                version = child.version or self._app.default_version(node.name)
                asked = (node.name, version, node.input, self.next_id("start"), action.on_conflict)
                start = RunStarted(*asked, parent=parent, since=since)
                self._queue.append((child.run_id, start))
            case CommandChild(execution, node, kind, reason):
                assert node.child is not None
                parent = Parent(run.run_id, execution, node.node_id)
                order = CommandReceived(kind, self.next_id("command"), reason, parent=parent)
                self._queue.append((node.child.run_id, order))
            case TellParent(parent, _, told):
                self._queue.append((parent.run_id, told))
