"""Starts: a new run, a start for a run that exists, and the next execution of one."""

from __future__ import annotations

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import Continued, ContinuedInPlace, Failure, Parent, RunStarted, StartRepeated
from ductor_stream.engine.fork import goes_on_for
from ductor_stream.engine.state import PLAIN_FORMAT, Begun, CancelRequested, Header, Held, RunState, SignalArrived


def first(run_id: str, event: RunStarted, execution: int) -> RunState:
    """The empty state of a run that is about to begin an execution."""
    return RunState(_header(run_id, event, execution, lifecycle_seq=0))


def begin(draft: Draft, event: RunStarted, now: int) -> list[Held]:
    """Begin the execution that the draft's header names."""
    header = draft.header
    header.started_at = header.now = now
    if event.run_timeout_ms is not None:
        header.run_due_at = now + event.run_timeout_ms
    draft.emit("run.started", now=now, about=event.start_id)
    return [Held(now, Begun())]


def again(draft: Draft, event: RunStarted, now: int) -> list[Held] | None:
    """A start for a run that exists follows ``on_conflict``. Where nothing begins, whoever may wait for it is answered.

    ``use_existing`` changes nothing: of an open run the end is told when it comes, of a closed one it is told now.
    """
    if goes_on_for(draft.header, event):
        return _go_on(draft, event, now)
    if event.parent is not None and not _is_begun_anew(draft, event, event.parent):
        _answer(draft, event.parent)
        return None
    if event.on_conflict == "use_existing":
        if draft.state.closed:
            draft.tell_ended(event.start_id, now)
        return None
    if event.on_conflict == "terminate_existing" and not draft.state.closed:
        draft.close("terminate", now, reason=f"replaced by start {event.start_id}")
    if not _may_restart(draft, event):
        draft.refuse("run_exists", event.start_id, now)
        return []
    return _restart(draft, event, now)


def repeated(draft: Draft, event: StartRepeated, now: int) -> None:
    """Its sender may have died before it heard: it is told again that it was refused, or how the run has ended."""
    if event.refused:
        draft.tell_refused(event.start_id, now)
    elif draft.state.closed:
        draft.tell_ended(event.start_id, now)


def _go_on(draft: Draft, event: RunStarted, now: int) -> list[Held]:
    """Its parent was retried. Where this run has failed, the tick has made a retry of it, too, but for what has kept nothing."""
    draft.header.parent = parent = event.parent
    assert parent is not None
    if not draft.state.closed:
        return []
    if draft.header.status == "completed":
        draft.tell_parent(parent, "completed")
        return []
    return _restart(draft, event, now)


def _restart(draft: Draft, event: RunStarted, now: int) -> list[Held]:
    old = draft.header
    draft.state.header = _header(old.run_id, event, old.execution + 1, lifecycle_seq=old.lifecycle_seq)
    draft.state.signals.clear()
    draft.state.span = draft.state.size = 0
    return begin(draft, event, now)


def next_execution(
    run_id: str, event: Continued | ContinuedInPlace, execution: int, now: int, *, lifecycle_seq: int = 0
) -> RunState:
    """The state with which the next execution begins: the planner has not heard anything of it yet."""
    state = RunState(_header(run_id, event, execution, lifecycle_seq=lifecycle_seq))
    state.header.now = state.header.started_at = now
    state.header.run_due_at = event.run_due_at
    state.span = event.span if isinstance(event, ContinuedInPlace) else 0
    state.signals = [SignalArrived(s.signal_id, s.name, s.payload) for s in event.signals]
    state.held = [Held(now, Begun()), *(Held(now, signal) for signal in state.signals)]
    if event.cancel_requested:
        state.header.cancel_requested = True
        state.held.append(Held(now, CancelRequested("asked before the run continued as new")))
    return state


def _answer(draft: Draft, parent: Parent) -> None:
    """A start with a parent is always answered: the run may be another's, or have ended already (protocol 24)."""
    header = draft.header
    if header.parent != parent:
        message = f"run {header.run_id} exists already, and is not the child of {parent.run_id}"
        if header.parent is not None and header.parent.run_id == parent.run_id:
            message += f" at this node: it is that of execution {header.parent.execution}, node {header.parent.node_id}"
        draft.tell_parent(parent, "refused", Failure("child_exists", "ChildExists", message, retryable=False))
    elif draft.state.closed:
        draft.tell_parent(parent, header.status)


def _is_begun_anew(draft: Draft, event: RunStarted, parent: Parent) -> bool:
    """Whether this run was the same node's child before a retry or reset of its parent, and has ended since."""
    mine = draft.header.parent
    if event.on_conflict != "restart_if_closed" or mine is None or not draft.state.closed:
        return False
    return (mine.run_id, mine.node_id) == (parent.run_id, parent.node_id) and mine.execution < parent.execution


def _may_restart(draft: Draft, event: RunStarted) -> bool:
    if event.on_conflict == "restart_if_failed":
        return draft.header.status in ("failed", "timed_out", "terminated", "cancelled")
    return event.on_conflict in ("restart_if_closed", "terminate_existing") and draft.state.closed


def _header(
    run_id: str, event: RunStarted | Continued | ContinuedInPlace, execution: int, *, lifecycle_seq: int
) -> Header:
    return Header(
        format=PLAIN_FORMAT,
        run_id=run_id,
        workflow=event.workflow,
        version=event.version,
        execution=execution,
        status="running",
        seq=0,
        now=0,
        lifecycle_seq=lifecycle_seq,
        started_at=0,
        input=event.input,
        context=event.context,
        parent=event.parent,
        run_timeout_ms=event.run_timeout_ms,
    )
