"""Retry and reset: a new execution that keeps the history of another one up to a point.

Its records begin with a ``Forked``; its state is folded from its lineage: the kept records of the
execution that it comes from, then its own. Their ``seq`` goes on without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import (
    AnyEvent,
    CarriedSignal,
    CommandReceived,
    Condemned,
    Continuation,
    ContinuedInPlace,
    Forked,
    RunStarted,
    RunTimedOut,
    SignalReceived,
)
from ductor_stream.engine.ids import next_id
from ductor_stream.engine.state import (
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Header,
    Held,
    Node,
    NodeCreated,
    Record,
    SignalArrived,
    SignalPassedOver,
    SignalTaken,
)
from ductor_stream.errors import InvariantViolation

RETRIED: Final = ("failed", "timed_out")
"""How a run has ended that may be retried."""


class Link(NamedTuple):
    """One execution: ``records`` are its lineage, as stored. Signals that stayed in place are to be found ``before`` them.

    Without ``whole``, what it leans on, or its own beginning, is not there.
    """

    execution: int
    before: list[Record]
    records: list[Record]
    whole: bool


def links(records: Iterable[Record]) -> Iterator[Link]:
    """The executions of a run one after another; what one link holds is good until the next is asked for."""
    before: list[Record] = []
    found: list[Record] = []
    whole = False
    for execution, group in groupby(records, attrgetter("execution")):
        own = list(group)
        event = own[0].event
        if isinstance(event, Forked):
            while found and found[-1].seq > event.upto:
                found.pop()
            found += own
        elif _leans(event):
            before += found
            found = own
        else:
            before, found, whole = [], own, own[0].seq == 1
        yield Link(execution, before, found, whole)


def _leans(event: AnyEvent) -> bool:
    """Whether the signals of an execution that begins like this stand in the records before it."""
    return isinstance(event, ContinuedInPlace) and not event.signals


def lineage(records: Iterable[Record], execution: int) -> list[Record]:
    """The records that the state of an execution is folded from; signals that stayed in place are in its first one.

    Raises InvariantViolation where records that it leans on are not there.
    """
    link = next((link for link in links(records) if link.execution == execution), None)
    if link is None:
        return []
    first, *more = link.records
    if not link.whole and (first.execution != execution or isinstance(first.event, Forked) or _leans(first.event)):
        raise InvariantViolation(f"execution {execution} leans on an earlier one, which is not there")
    if isinstance(first.event, ContinuedInPlace) and _leans(first.event):
        whole = msgspec.structs.replace(first.event, signals=_untaken(link.before))
        return [msgspec.structs.replace(first, event=whole), *more]
    return link.records


def _untaken(records: Sequence[Record]) -> list[CarriedSignal]:
    """The signals that nobody has taken by the end of these executions, in the order of their arrival."""
    waiting: dict[str, CarriedSignal] = {}
    for record in records:
        event = record.event
        if isinstance(event, SignalReceived):
            waiting[event.signal_id] = CarriedSignal(event.signal_id, event.name, event.payload)
        elif isinstance(event, Continuation | Forked):
            waiting.update((signal.signal_id, signal) for signal in event.signals)
        for decision in record.decisions or ():
            if isinstance(decision, SignalTaken | SignalPassedOver):
                waiting.pop(decision.signal_id, None)
    return list(waiting.values())


def goes_on_for(header: Header, event: RunStarted) -> bool:
    """Whether this run is the child that the event's parent has had, and wants to go on after a retry of itself."""
    mine, parent = header.parent, event.parent
    if not event.since or mine is None or parent is None:
        return False
    same_node = (mine.run_id, mine.node_id) == (parent.run_id, parent.node_id)
    return same_node and event.since <= mine.execution <= parent.execution


def fork_of(event: AnyEvent, header: Header) -> CommandReceived | None:
    """The retry or reset that this event is: a command, or the wish of a parent that is retried itself."""
    if isinstance(event, RunStarted) and header.status in RETRIED and goes_on_for(header, event):
        return CommandReceived("retry", event.start_id, "its parent was retried", parent=event.parent)
    return event if isinstance(event, CommandReceived) and event.kind in ("retry", "reset") else None


def fork_for(command: CommandReceived, header: Header, history: Sequence[Record]) -> Forked | None:
    """What a retry or reset does to the run, None where it does not apply. ``history`` is the run's lineage."""
    closed_by = next((record.seq for record in history if _closes(record)), 1 << 62)
    if command.kind == "retry":
        if header.status not in RETRIED:
            return None
        # Everything before the event that closed the run is kept, what that was about is tried again.
        upto = closed_by - 1
    elif command.to_transition is not None:
        upto = command.to_transition if command.to_transition < min(closed_by, history[-1].seq + 1) else 0
    else:
        upto = _creation(history, command.to_node or "")
        # Made and dropped by the very event that closed the run, it was never waited for: nothing would go on from there.
        upto = upto if upto < closed_by else 0
    if upto < 1:
        return None
    signals = [s for record in history if upto < record.seq <= closed_by for s in _signals(record)]
    # The execution of the last record that is kept, so that a lineage is complete in itself: what lies between is not.
    source = [record for record in history if record.seq <= upto][-1].execution
    parent = command.parent or header.parent
    return Forked(source, upto, command.kind, command.command_id, command.reason, signals, parent, header.version)


def _signals(record: Record) -> list[CarriedSignal]:
    """The signals that arrived with this record."""
    event = record.event
    if isinstance(event, SignalReceived):
        return [CarriedSignal(event.signal_id, event.name, event.payload)]
    return event.signals if isinstance(event, Forked) else []


def _closes(record: Record) -> bool:
    """Whether this event ends the run, if it is open. What came after the end was answered by a rejection."""
    event = record.event
    if isinstance(event, (RunTimedOut, Condemned)) or (
        isinstance(event, CommandReceived) and event.kind == "terminate"
    ):
        return True
    return any(isinstance(decision, (Completed, Failed, Cancelled)) for decision in record.decisions or ())


def _creation(history: Sequence[Record], node_id: str) -> int:
    for record in history:
        for decision in record.decisions or ():
            if isinstance(decision, NodeCreated) and decision.node_id == node_id:
                return record.seq
    return 0


def reset_in(records: Iterable[Record]) -> int:
    """The last execution of this lineage that a reset began (0: none): what it begins has ids of its own."""
    began = (record.execution for record in records if _resets(record.event))
    return max(began, default=0)


def _resets(event: AnyEvent) -> bool:
    return isinstance(event, Forked) and event.kind == "reset"


def forked(draft: Draft, event: Forked, execution: int, now: int) -> list[Held]:
    """Go on as a new execution from the draft's state: open steps are dispatched anew, later signals are told again."""
    header = draft.header
    origin = header.origin or header.execution
    header.run_due_at = None if header.run_timeout_ms is None else now + header.run_timeout_ms
    header.execution, header.origin, header.status = execution, origin, "running"
    header.result = header.failure = header.parked = None
    header.cancel_requested = False
    header.parent, header.version = event.parent or header.parent, event.version or header.version
    header.since = execution if event.kind == "reset" else header.since or origin
    nodes, held = list(draft.state.nodes.values()), []
    for each in draft.state.held:
        if event.kind == "retry" and each.node is not None:
            nodes.append(each.node)  # failed while the run stood still: its code has not heard of it, and need not
        elif not isinstance(each.fact, CancelRequested):  # which goes with the execution that it was for
            held.append(each)
    for node in nodes:
        _again(draft, node, event, now)
    arrived = [SignalArrived(s.signal_id, s.name, s.payload) for s in event.signals]
    draft.state.signals.extend(arrived)
    held += [Held(now, signal) for signal in arrived]
    draft.state.held.clear()
    draft.emit("run.started", now=now, reason=f"{event.kind} {event.command_id}: {event.reason}".rstrip(": "))
    return held


def _again(draft: Draft, node: Node, event: Forked, now: int) -> None:
    # A retried node keeps its idempotency key, or its child: what it did already must not be done twice. A reset wants
    # it done again.
    retried = event.kind == "retry"
    if node.kind == "step":
        key = (node.key_execution or event.from_execution) if retried else 0
        draft.dispatch(
            msgspec.structs.replace(
                node,
                status="dispatched",
                generation=node.generation + 1,
                attempt=1,
                rejections=0,
                due_at=None,
                created_at=now,
                dispatched_at=now,
                key_execution=key,
                redrives=0,
                sent_at=0,
            )
        )
    elif node.child is not None:
        run_id = node.child.run_id if retried else next_id(node.child.run_id, draft.header.execution)
        child = msgspec.structs.replace(node.child, run_id=run_id)
        draft.start_child(msgspec.structs.replace(node, child=child))
    else:
        draft.put(node)
