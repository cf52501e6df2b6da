"""From records back to the state, and to the live workflow: the fold and the replay of a history."""

from __future__ import annotations

from collections.abc import Sequence

from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.decide import decide, park
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import CommandReceived, Continuation, Forked, RunStarted, SignalReceived
from ductor_stream.engine.fork import forked, links, reset_in
from ductor_stream.engine.planners import Live, start_live
from ductor_stream.engine.reduce import reduce
from ductor_stream.engine.reduce.start import begin, first, next_execution
from ductor_stream.engine.state import Header, Held, Parked, Record, RunState
from ductor_stream.errors import InvariantViolation


def rebuild(run_id: str, records: Sequence[Record]) -> RunState:
    """The state after these records of one execution, without asking any workflow code.

    Raises InvariantViolation when they do not begin with a start. Of the header, ``lifecycle_seq`` counts
    over executions and is known to the run's row only.
    """
    return fold(run_id, records, None)


def replayed(definition: WorkflowDefinition, header: Header, records: Sequence[Record]) -> Live | Parked:
    """The live workflow after these records, or why today's code does not decide what is recorded."""
    live = start_live(definition, header, reset_in(records))
    try:
        problem = _Replay(live).run(header.run_id, records)
    except BaseException:
        live.abandon()
        raise
    if problem is not None:
        live.abandon()
        return problem
    return live


def replay(definition: WorkflowDefinition, run_id: str, records: Sequence[Record]) -> Parked | None:
    """Whether this code decides what is recorded in the lineage of one execution: None, or the first difference."""
    live = replayed(definition, rebuild(run_id, records).header, records)
    if isinstance(live, Parked):
        return live
    live.abandon()
    return None


def refusals(run_id: str, records: Sequence[Record]) -> dict[tuple[int, int], str]:
    """The records of requests that were refused, by (execution, seq), each with the ``code`` of its rejection.

    ``records`` is the history of the run, as far as it is there. A refusal is not written down: it follows from the state.
    """
    found: dict[tuple[int, int], str] = {}
    # Everything else that an execution hears comes from the engine itself, which refuses nothing to itself.
    asked = {r.execution for r in records if isinstance(r.event, RunStarted | CommandReceived | SignalReceived)}
    for link in links(records):
        # Not whole: what it leans on, or its own beginning, was folded into the run's summary. Signals that wait refuse nothing.
        if link.whole and link.execution in asked:
            fold(run_id, link.records, None, found)
    return found


class _Replay:
    """Feeds a live coroutine the facts of recorded events, and compares what it decides with what was recorded."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.problem: Parked | None = None

    def run(self, run_id: str, records: Sequence[Record]) -> Parked | None:
        if records:
            fold(run_id, records, self)
        return self.problem

    def hear(self, facts: list[Held], record: Record) -> None:
        if self.problem is not None or record.decisions is None:
            return
        outcome = self.live.feed(facts, record.decisions)
        if isinstance(outcome, Parked):
            self.problem = outcome


def fold(
    run_id: str,
    records: Sequence[Record],
    replay: _Replay | None,
    refused: dict[tuple[int, int], str] | None = None,
) -> RunState:
    """The state after these records; ``replay`` hears what the planner heard, ``refused`` gets what was refused."""
    draft: Draft | None = None
    for record in records:
        if isinstance(record.event, Forked) and draft is not None:
            facts = forked(draft, record.event, record.execution, record.now)
        elif draft is None or record.execution != draft.header.execution:
            draft, facts = _begin_recorded(run_id, record)
        else:
            facts = reduce(draft, record.event, record.now) or []
        draft.header.seq = record.seq
        draft.header.now = record.now
        draft.hear(record.event)
        draft.continued = None
        if replay is not None and facts:
            replay.hear(facts, record)
        if record.decisions is not None:
            decide(draft, record.decisions)
        elif record.parked is not None:
            park(draft, record.parked, facts)
        elif facts:
            draft.state.held.extend(facts)
        if refused is not None and (code := _rejected(draft)):
            refused[record.execution, record.seq] = code
        draft.actions.clear()
        draft.dispatches.clear()
    if draft is None:
        raise InvariantViolation("a run without any record cannot be rebuilt")
    return draft.state


def _rejected(draft: Draft) -> str:
    told = [each for each in draft.actions if isinstance(each, EmitLifecycle) and each.type == "command.rejected"]
    return told[0].reason if told else ""


def _begin_recorded(run_id: str, record: Record) -> tuple[Draft, list[Held]]:
    if isinstance(record.event, Continuation):
        return Draft(next_execution(run_id, record.event, record.execution, record.now)), []
    if not isinstance(record.event, RunStarted):
        raise InvariantViolation(f"run {run_id}: execution {record.execution} does not begin with a start")
    begun = Draft(first(run_id, record.event, record.execution))
    return begun, begin(begun, record.event, record.now)
