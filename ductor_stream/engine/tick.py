"""The tick: (definitions, state, events) -> (state, actions, records). Pure (R2).

Two halves: ``reduce`` applies an event to the state, ``plan`` asks the workflow what next.
``reduce`` counts even when ``plan`` fails: then the run is parked with the reason, and the
facts are held for the code that can go on.

A ``Live`` coroutine that is passed in is only a memo of replay: with and without it, the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ductor_stream.engine.actions import Action, StartChild
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.draft import Draft, deadline
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptTimedOut,
    CommandReceived,
    Continued,
    Forked,
    Proceed,
    RunStarted,
    RunTimedOut,
    TimerFired,
)
from ductor_stream.engine.fork import fork_for, forked, lineage
from ductor_stream.engine.planners import Live, start_live
from ductor_stream.engine.reduce import reduce
from ductor_stream.engine.reduce.start import begin, first, next_execution
from ductor_stream.engine.state import (
    AnyDecision,
    Cancelled,
    Completed,
    ContinuedAsNew,
    Failed,
    Held,
    Node,
    NodeCreated,
    NodeDropped,
    Parked,
    Patched,
    Record,
    RunState,
    SignalTaken,
    ViewSet,
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
        self.kept: list[Record] = []

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
            fork = self._fork(self.draft, event)
            if fork is None:
                facts = reduce(self.draft, event, now)
            else:
                event, facts = fork, self._forked(self.draft, fork, run_id, now)
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
        elif self.draft.continued is not None:
            self._continue(self.draft, self.draft.continued, now)

    def _fork(self, draft: Draft, event: AnyEvent) -> Forked | None:
        """Retry and reset need the history; what they refuse is refused as any command is."""
        if not isinstance(event, CommandReceived) or event.kind not in ("retry", "reset"):
            return None
        found = fork_for(event, draft.header, lineage((*self.history, *self.records), draft.header.execution))
        return found if isinstance(found, Forked) else None

    def _forked(self, draft: Draft, event: Forked, run_id: str, now: int) -> list[Held]:
        if not draft.state.closed:
            draft.close("terminate", now, reason=f"{event.kind} {event.command_id}")
        old = draft.header
        kept = [r for r in lineage((*self.history, *self.records), old.execution) if r.seq <= event.upto]
        self.kept = kept
        draft.state = _fold(run_id, kept, None)
        draft.header.lifecycle_seq = old.lifecycle_seq
        facts = forked(draft, event, old.execution + 1, now)
        draft.header.seq = event.upto
        return facts

    def _continue(self, draft: Draft, event: Continued, now: int) -> None:
        """Begin the next execution. Its code runs in a later tick (``Proceed``): a loop of them cannot hold a batch up."""
        self.forget()
        draft.continued = None
        execution = draft.header.execution + 1
        draft.state = next_execution(draft.header, event, execution, now)
        draft.header.seq = 1
        self.records.append(Record(execution, 1, now, event))

    def _plan(self, facts: list[Held]) -> tuple[list[AnyDecision] | None, Parked | None]:
        assert self.draft is not None
        draft = self.draft
        if draft.header.status != "running" or draft.state.held:
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
        # While a fork itself is planned, its record is not written yet: its lineage is what it keeps.
        records = lineage((*self.history, *self.records), header.execution) or self.kept
        live = start_live(definition, header)
        try:
            problem = _Replay(live).run(header.run_id, records)
        except BaseException:
            live.abandon()
            raise
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
        if isinstance(record.event, Forked) and draft is not None:
            facts = forked(draft, record.event, record.execution, record.now)
        elif draft is None or record.execution != draft.header.execution:
            draft, facts = _begin_recorded(run_id, record, draft)
        else:
            facts = reduce(draft, record.event, record.now) or []
        draft.header.seq = record.seq
        draft.header.now = record.now
        draft.continued = None
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


def _begin_recorded(run_id: str, record: Record, before: Draft | None) -> tuple[Draft, list[Held]]:
    if isinstance(record.event, Continued):
        old = before.header if before is not None else first(run_id, _as_start(record.event), record.execution).header
        return Draft(next_execution(old, record.event, record.execution, record.now)), []
    if not isinstance(record.event, RunStarted):
        raise InvariantViolation(f"run {run_id}: execution {record.execution} does not begin with a start")
    begun = Draft(first(run_id, record.event, record.execution))
    return begun, begin(begun, record.event, record.now)


def _as_start(event: Continued) -> RunStarted:
    return RunStarted(event.workflow, event.version, event.input, "")


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
            case NodeCreated(node_id, kind, name, input, options, due_at, child):
                if kind == "step":
                    draft.dispatch(Node(node_id, kind, name, "dispatched", now, input, options, dispatched_at=now))
                elif child is not None:
                    node = Node(node_id, kind, name, "waiting", now, input, child=child)
                    draft.actions.append(StartChild(header.execution, node))
                    if not child.detached:
                        draft.put(node)
                else:
                    draft.put(Node(node_id, kind, name, "waiting", now, due_at=due_at))
            case NodeDropped(node_id):
                # Not there: its result came while the run was held up, and another one that came before won the race.
                if node_id in nodes:
                    draft.drop(node_id, "no longer awaited")
            case SignalTaken(signal_id, taken_by):
                draft.state.signals[:] = [s for s in draft.state.signals if s.signal_id != signal_id]
                if taken_by is not None:
                    del nodes[taken_by]
            case Patched():
                pass
            case ViewSet(view):
                header.view = view
            case ContinuedAsNew(input, version):
                draft.continued = draft.continue_as_new(input, version, now)
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
    if header.status == "running" and state.held:
        return [Proceed(header.execution)]
    due: list[tuple[int, int, AnyEvent]] = []
    for order, node in enumerate(state.nodes.values()):
        at = deadline(node, running=header.status == "running")
        if at is None or at > now:
            continue
        # A node whose time is over is not tried once more on the way out.
        event = _overdue(header.execution, node, now) or TimerFired(header.execution, node.node_id, node.generation)
        due.append((at, order, event))
    return [event for _, _, event in sorted(due, key=lambda entry: entry[:2])]


def _overdue(execution: int, node: Node, now: int) -> AttemptTimedOut | None:
    options = node.options
    if options is None:
        return None
    if options.schedule_to_close_ms is not None and node.created_at + options.schedule_to_close_ms <= now:
        return AttemptTimedOut(execution, node.node_id, node.generation, "timeout_schedule_to_close")
    if node.status == "dispatched":
        return AttemptTimedOut(execution, node.node_id, node.generation, "timeout_schedule_to_start")
    return None


def wake_at(state: RunState) -> int | None:
    """The earliest moment (ms) at which the run must be looked at even if nothing comes, or None. Linear in open nodes."""
    if state.closed:
        return None
    running = state.header.status == "running"
    if running and state.held:
        return state.header.now
    due = [at for node in state.nodes.values() if (at := deadline(node, running=running)) is not None]
    if state.header.run_due_at is not None:
        due.append(state.header.run_due_at)
    return min(due, default=None)
