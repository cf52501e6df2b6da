"""The tick: (definitions, state, events) -> (state, actions, records). Pure (R2).

Two halves: ``reduce`` applies an event to the state, ``plan`` asks the workflow what next.
``reduce`` counts even when ``plan`` fails: then the run is parked with the reason, and the
facts are held for the code that can go on.

A ``Live`` coroutine that is passed in is only a memo of replay: with and without it, the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ductor_stream.engine.actions import Action
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.draft import Draft, deadline
from ductor_stream.engine.events import AnyEvent, AttemptTimedOut, RunStarted, RunTimedOut, TimerFired
from ductor_stream.engine.planners import Live, start_live
from ductor_stream.engine.reduce import reduce
from ductor_stream.engine.reduce.start import begin, first
from ductor_stream.engine.state import (
    AnyDecision,
    Cancelled,
    Completed,
    Failed,
    Held,
    Node,
    NodeCreated,
    NodeDropped,
    Parked,
    Record,
    RunState,
    SignalTaken,
)
from ductor_stream.errors import InvariantViolation

Definitions = Mapping[tuple[str, str], WorkflowDefinition]


class Stamped(msgspec.Struct, frozen=True):
    """An event with the time (ms) at which it is applied."""

    now: int
    event: AnyEvent


class Tick(msgspec.Struct):
    """What a tick says. ``state`` is None when there is no run yet and no event began one.

    ``records`` is empty when no event changed anything. ``soonest`` is the earliest due time (ms) among
    the nodes touched. ``live`` may serve the next tick if, and only if, this one is committed.
    """

    state: RunState | None
    actions: list[Action]
    records: list[Record]
    soonest: int | None
    live: Live | None


def tick(
    definitions: Definitions,
    run_id: str,
    state: RunState | None,
    events: Sequence[Stamped],
    *,
    live: Live | None = None,
    history: Sequence[Record] = (),
    execution: int = 1,
) -> Tick:
    """Apply events one at a time, in order; the workflow runs to quiescence after each.

    ``definitions`` are those that the owner has code for, by (workflow, version). ``history`` holds the
    records of the current execution, needed where ``live`` is None. ``execution`` numbers the first
    execution of a run without state. The input is not changed.
    """
    pass_ = _Pass(definitions, state, live, history)
    try:
        for stamped in events:
            pass_.apply(run_id, stamped, execution)
    except BaseException:
        pass_.forget()
        raise
    draft = pass_.draft
    if draft is None:
        return Tick(None, [], [], None, None)
    return Tick(draft.state, draft.all_actions(), pass_.records, draft.soonest, pass_.live)


def rebuild(run_id: str, records: Sequence[Record]) -> RunState:
    """The state after these records of one execution, without asking any workflow code.

    Raises InvariantViolation when they do not begin with a start. Of the header, ``lifecycle_seq`` counts
    over executions and is known to the run's row only.
    """
    return _fold(run_id, records, None)


class _Pass:
    """The working variables of one tick."""

    def __init__(
        self, definitions: Definitions, state: RunState | None, live: Live | None, history: Sequence[Record]
    ) -> None:
        self.definitions = definitions
        self.draft = Draft(state.clone()) if state is not None else None
        self.live = live
        self.history = history
        self.records: list[Record] = []

    def apply(self, run_id: str, stamped: Stamped, execution: int) -> None:
        event = stamped.event
        if self.draft is None:
            if not isinstance(event, RunStarted):
                raise InvariantViolation(f"run {run_id} has no state and the event is no start: {type(event).__name__}")
            self.draft = Draft(first(run_id, event, execution))
            facts: list[Held] | None = begin(self.draft, event, stamped.now)
            now = stamped.now
        else:
            before = self.draft.header.execution
            now = max(stamped.now, self.draft.header.now)
            facts = reduce(self.draft, event, now)
            if self.draft.header.execution != before:
                self.forget()
        if facts is None:
            return
        header = self.draft.header
        header.seq += 1
        header.now = now
        decisions, parked = self._plan(facts) if facts else (None, None)
        self.records.append(Record(header.execution, header.seq, now, event, decisions, parked))
        if self.draft.state.closed:
            self.forget()

    def _plan(self, facts: list[Held]) -> tuple[list[AnyDecision] | None, Parked | None]:
        assert self.draft is not None
        draft = self.draft
        if draft.header.status != "running":
            draft.state.held.extend(facts)
            return None, None
        outcome = self._ask(facts)
        if isinstance(outcome, Parked):
            self.forget()
            _park(draft, outcome, facts)
            return None, outcome
        decide(draft, outcome)
        return outcome, None

    def _ask(self, facts: list[Held]) -> list[AnyDecision] | Parked:
        assert self.draft is not None
        header = self.draft.header
        definition = self.definitions.get((header.workflow, header.version))
        if definition is None:
            return Parked("version_missing", f"{header.workflow} version {header.version} is not deployed here")
        if self.live is None:
            replayed = self._replay(definition)
            if isinstance(replayed, Parked):
                return replayed
            self.live = replayed
        return self.live.feed(facts)

    def _replay(self, definition: WorkflowDefinition) -> Live | Parked:
        assert self.draft is not None
        header = self.draft.header
        records = [r for r in (*self.history, *self.records) if r.execution == header.execution]
        live = start_live(definition, header)
        problem = _Replay(live).run(header.run_id, records)
        if problem is not None:
            live.abandon()
            return problem
        return live

    def forget(self) -> None:
        if self.live is not None:
            self.live.abandon()
            self.live = None


class _Replay:
    """Feeds a live coroutine the facts of recorded events, and compares what it decides with what was recorded."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.problem: Parked | None = None

    def run(self, run_id: str, records: Sequence[Record]) -> Parked | None:
        if records:
            _fold(run_id, records, self)
        return self.problem

    def hear(self, facts: list[Held], record: Record) -> None:
        if self.problem is not None or record.decisions is None:
            return
        outcome = self.live.feed(facts, record.decisions)
        if isinstance(outcome, Parked):
            self.problem = outcome


def _fold(run_id: str, records: Sequence[Record], replay: _Replay | None) -> RunState:
    draft: Draft | None = None
    for record in records:
        if draft is None or record.execution != draft.header.execution:
            draft, facts = _begin_recorded(run_id, record)
        else:
            facts = reduce(draft, record.event, record.now) or []
        draft.header.seq = record.seq
        draft.header.now = record.now
        if replay is not None and facts:
            replay.hear(facts, record)
        if record.decisions is not None:
            decide(draft, record.decisions)
        elif record.parked is not None:
            _park(draft, record.parked, facts)
        elif facts:
            draft.state.held.extend(facts)
        draft.actions.clear()
        draft.dispatches.clear()
    if draft is None:
        raise InvariantViolation("a run without any record cannot be rebuilt")
    return draft.state


def _begin_recorded(run_id: str, record: Record) -> tuple[Draft, list[Held]]:
    if not isinstance(record.event, RunStarted):
        raise InvariantViolation(f"run {run_id}: execution {record.execution} does not begin with a start")
    begun = Draft(first(run_id, record.event, record.execution))
    return begun, begin(begun, record.event, record.now)


def _park(draft: Draft, parked: Parked, facts: list[Held]) -> None:
    """Suspend the run with its reason; what the planner could not take is held for other code."""
    draft.move("park")
    draft.header.parked = parked
    draft.state.held.extend(facts)
    draft.emit("run.suspended", now=draft.header.now, reason=f"{parked.code}: {parked.message}")


def decide(draft: Draft, decisions: Sequence[AnyDecision]) -> None:
    """Apply what the planner said, in its order."""
    header, nodes = draft.header, draft.state.nodes
    now = header.now
    for decision in decisions:
        match decision:
            case NodeCreated(node_id, kind, name, input, options, due_at):
                if kind == "step":
                    draft.dispatch(Node(node_id, kind, name, "dispatched", now, input, options, dispatched_at=now))
                else:
                    draft.put(Node(node_id, kind, name, "waiting", now, due_at=due_at))
            case NodeDropped(node_id):
                draft.drop(node_id, "no longer awaited")
            case SignalTaken(signal_id, taken_by):
                draft.state.signals[:] = [s for s in draft.state.signals if s.signal_id != signal_id]
                if taken_by is not None:
                    del nodes[taken_by]
            case Completed(result):
                header.result = result
                draft.close("complete", now)
            case Failed(failure):
                draft.close("fail", now, failure=failure)
            case Cancelled():
                draft.close("cancel", now)


def due_events(state: RunState, now: int) -> list[AnyEvent]:
    """What has come due by ``now`` (ms), earliest first. Time-outs of attempts that depend on heartbeats are not here."""
    header = state.header
    if state.closed:
        return []
    if header.run_due_at is not None and header.run_due_at <= now:
        return [RunTimedOut(header.execution)]
    due: list[tuple[int, int, AnyEvent]] = []
    for order, node in enumerate(state.nodes.values()):
        at = deadline(node)
        if at is None or at > now:
            continue
        if node.due_at is not None and node.due_at <= now:
            if header.status == "running":
                due.append((node.due_at, order, TimerFired(header.execution, node.node_id, node.generation)))
        elif event := _overdue(header.execution, node, now):
            due.append((at, order, event))
    return [event for _, _, event in sorted(due, key=lambda entry: entry[:2])]


def _overdue(execution: int, node: Node, now: int) -> AttemptTimedOut | None:
    options = node.options
    if options is None:
        return None
    code = "timeout_schedule_to_start"
    if options.schedule_to_close_ms is not None and node.created_at + options.schedule_to_close_ms <= now:
        code = "timeout_schedule_to_close"
    return AttemptTimedOut(execution, node.node_id, node.generation, code)


def wake_at(state: RunState) -> int | None:
    """The earliest moment (ms) at which the run must be looked at even if nothing comes, or None. Linear in open nodes."""
    if state.closed:
        return None
    running = state.header.status == "running"
    due = [at for node in state.nodes.values() if (at := deadline(node)) is not None and (running or node.due_at is None)]
    if state.header.run_due_at is not None:
        due.append(state.header.run_due_at)
    return min(due, default=None)
