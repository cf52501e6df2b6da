"""Control: commands, the run's own timeout, and redeployment of its code."""

from __future__ import annotations

from typing import Final

from ductor_stream.engine.actions import Refusal
from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import CommandReceived, Condemned, Failure, Proceed, Redeployed, RunTimedOut
from ductor_stream.engine.fork import RETRIED
from ductor_stream.engine.state import CancelRequested, Held, Status
from ductor_stream.engine.transitions import moved

_STANDS_IN_THE_WAY: Final[dict[Status, Refusal]] = {"running": "run_is_running", "paused": "run_is_paused"}
"""A run that is paused or running already. A suspended one can be paused as well as resumed, an open one ended."""


def command(draft: Draft, event: CommandReceived, now: int) -> list[Held] | None:
    """Apply an order. What does not apply is answered by a ``command.rejected`` and changes nothing else.

    A parent's order is for its child alone: the id may have been another run's before, or may be since (protocol 24).
    """
    if event.parent is not None and event.parent != draft.header.parent:
        return None
    refused = _refusal(draft, event)
    if refused:
        draft.refuse(refused, event.command_id, now)
        return []
    match event.kind:
        case "cancel":
            draft.header.cancel_requested = True
            return [Held(now, CancelRequested(event.reason))]
        case "terminate":
            draft.close("terminate", now, reason=event.reason)
            return []
        case "pause":
            draft.move("pause")
            draft.emit("run.paused", now=now, reason=event.reason)
            return []
        case _:
            return resume(draft, now, event.reason)


def _refusal(draft: Draft, event: CommandReceived) -> Refusal | None:
    match event.kind:
        case "retry":
            # Where retry and reset apply, the tick has made a Forked of them: what failed at its start keeps nothing.
            return "nothing_to_retry" if draft.header.status in RETRIED else "run_not_failed"
        case "reset":
            return "node_not_found" if event.to_transition is None else "transition_not_found"
        case _ if draft.state.closed:
            return "run_closed"
        case "cancel":
            return "cancel_requested_already" if draft.header.cancel_requested else None
        case kind:
            return None if moved(draft.header.status, kind) else _STANDS_IN_THE_WAY[draft.header.status]


def resume(draft: Draft, now: int, reason: str) -> list[Held]:
    """Go on from pause or suspension: the planner now hears what was held back, in order, at its own times."""
    draft.move("resume")
    draft.header.parked = None
    held = list(draft.state.held)
    draft.state.held.clear()
    for node in draft.state.nodes.values():
        draft.watch(node)  # timers were of no interest meanwhile
    draft.emit("run.resumed", now=now, reason=reason)
    return held


def proceed(draft: Draft, event: Proceed) -> list[Held] | None:
    """The planner hears what is held for an execution that has just begun."""
    if draft.header.status != "running" or event.execution != draft.header.execution or not draft.state.held:
        return None
    held = list(draft.state.held)
    draft.state.held.clear()
    return held


def redeployed(draft: Draft, event: Redeployed, now: int) -> list[Held] | None:
    """Other code is there for a suspended run: try again. The same code would only fail again."""
    parked = draft.header.parked
    if draft.header.status != "suspended" or parked is None or parked.digest == event.digest:
        return None
    if not draft.header.version:
        draft.header.version = event.version
    return resume(draft, now, f"code {event.digest[:12]} deployed")


def condemned(draft: Draft, event: Condemned, now: int) -> list[Held] | None:
    """Fail the run by force: better an explained failure than silence (R9)."""
    if draft.state.closed:
        return None
    draft.close("fail", now, failure=Failure(event.code, "Condemned", event.message, retryable=False))
    return []


def run_timed_out(draft: Draft, event: RunTimedOut, now: int) -> list[Held] | None:
    """The run's own timeout: hard, like terminate."""
    header = draft.header
    if draft.state.closed or event.execution != header.execution or header.run_due_at is None:
        return None
    if now < header.run_due_at:
        return None
    failure = Failure("timeout_run", "RunTimedOut", "the run did not end within its timeout", retryable=False)
    draft.close("time_out", now, failure=failure)
    return []
