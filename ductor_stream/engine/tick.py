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
from ductor_stream.engine.decide import decide, park
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.draft import Draft
from ductor_stream.engine.due import due_events, wake_at
from ductor_stream.engine.events import AnyEvent, Continued, ContinuedInPlace, Forked, RunStarted
from ductor_stream.engine.fork import fork_for, fork_of, forked, lineage
from ductor_stream.engine.planners import Live, LogLine
from ductor_stream.engine.rebuild import fold, rebuild, replay, replayed
from ductor_stream.engine.reduce import reduce
from ductor_stream.engine.reduce.start import begin, first, next_execution
from ductor_stream.engine.state import AnyDecision, Held, Parked, Record, RunState
from ductor_stream.errors import InvariantViolation

__all__ = ["Definitions", "Stamped", "Tick", "due_events", "rebuild", "replay", "tick", "wake_at"]

Definitions = Mapping[tuple[str, str], WorkflowDefinition]


class Stamped(msgspec.Struct, frozen=True):
    """An event with the time (ms) at which it is applied."""

    now: int
    event: AnyEvent


class Tick(msgspec.Struct):
    """What a tick says. ``state`` is None when there is no run yet and no event began one.

    ``records`` is empty when no event changed anything. ``soonest`` is the earliest due time (ms) among
    the nodes touched. ``live`` may serve the next tick if, and only if, this one is committed; so may ``lines`` be
    written, what the workflow has logged.
    """

    state: RunState | None
    actions: list[Action]
    records: list[Record]
    soonest: int | None
    live: Live | None
    lines: list[LogLine] = []


def tick(
    definitions: Definitions,
    run_id: str,
    state: RunState | None,
    events: Sequence[Stamped],
    *,
    live: Live | None = None,
    history: Sequence[Record] = (),
    parked: Parked | None = None,
) -> Tick:
    """Apply events one at a time, in order; the workflow runs to quiescence after each.

    ``definitions`` are those that the owner has code for, by (workflow, version). ``history`` holds the
    records of the run's lineage, needed where ``live`` is None. With ``parked`` the run's code is not run:
    it is suspended for that reason. The input is not changed.
    """
    pass_ = _Pass(definitions, state, live, history, parked)
    try:
        for stamped in events:
            pass_.apply(run_id, stamped)
    except BaseException:
        pass_.forget()
        raise
    draft = pass_.draft
    if draft is None:
        return Tick(None, [], [], None, None)
    return Tick(draft.state, draft.all_actions(), pass_.records, draft.soonest, pass_.live, pass_.all_lines())


class _Pass:
    """The working variables of one tick."""

    def __init__(
        self,
        definitions: Definitions,
        state: RunState | None,
        live: Live | None,
        history: Sequence[Record],
        parked: Parked | None,
    ) -> None:
        self.definitions, self.parked = definitions, parked
        self.draft = Draft(state.clone()) if state is not None else None
        self.live = live
        self.history = history
        self.records: list[Record] = []
        self.kept: list[Record] = []
        self.lines: list[LogLine] = []

    def apply(self, run_id: str, stamped: Stamped) -> None:
        self.kept = []
        event = stamped.event
        if self.draft is None:
            if not isinstance(event, RunStarted):
                raise InvariantViolation(f"run {run_id} has no state and the event is no start: {type(event).__name__}")
            self.draft = Draft(first(run_id, event, 1))
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
        self.draft.hear(event)
        decisions, parked = self._plan(facts) if facts else (None, None)
        self.records.append(Record(header.execution, header.seq, now, event, decisions, parked))
        if self.draft.state.closed:
            self.forget()
        elif self.draft.continued is not None:
            self._continue(self.draft, self.draft.continued, now)

    def _fork(self, draft: Draft, event: AnyEvent) -> Forked | None:
        """Retry and reset need the history; what they refuse is refused as any command is."""
        asked = fork_of(event, draft.header)
        if asked is None:
            return None
        return fork_for(asked, draft.header, lineage((*self.history, *self.records), draft.header.execution))

    def _forked(self, draft: Draft, event: Forked, run_id: str, now: int) -> list[Held]:
        if not draft.state.closed:
            # Its parent goes on waiting: it hears how the next execution ends.
            draft.close("terminate", now, reason=f"{event.kind} {event.command_id}", told=False)
        old = draft.header
        kept = [r for r in lineage((*self.history, *self.records), old.execution) if r.seq <= event.upto]
        self.kept = kept
        draft.state = fold(run_id, kept, None)
        draft.header.lifecycle_seq = old.lifecycle_seq
        facts = forked(draft, event, old.execution + 1, now)
        self.kept.append(Record(old.execution + 1, event.upto + 1, now, event))
        draft.header.seq = event.upto
        return facts

    def _continue(self, draft: Draft, event: Continued | ContinuedInPlace, now: int) -> None:
        """Begin the next execution. Its code runs in a later tick (``Proceed``): a loop of them cannot hold a batch up."""
        self.forget()
        draft.continued = None
        old, execution = draft.header, draft.header.execution + 1
        draft.state = next_execution(old.run_id, event, execution, now, lifecycle_seq=old.lifecycle_seq)
        draft.header.seq = 1
        draft.hear(event)
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
            park(draft, outcome, facts)
            return None, outcome
        decide(draft, outcome)
        return outcome, None

    def _ask(self, facts: list[Held]) -> list[AnyDecision] | Parked:
        assert self.draft is not None
        if self.parked is not None:
            return self.parked
        header = self.draft.header
        definition = self.definitions.get((header.workflow, header.version))
        if definition is None:
            version = f" version {header.version}" if header.version else ""
            return Parked("version_missing", f"{header.workflow}{version} is not deployed here")
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
        return replayed(definition, header, records)

    def all_lines(self) -> list[LogLine]:
        return self.lines if self.live is None else [*self.lines, *self.live.lines()]

    def forget(self) -> None:
        if self.live is not None:
            # Before its cleanup runs: what that logs, and does, goes nowhere.
            self.lines += self.live.lines()
            self.live.abandon()
            self.live = None
