"""The first half of a tick: apply an event to the state. One file per family of events.

A reducer changes the draft and returns the facts that the planner must hear, or None when
the event changes nothing (then no record is written). It must not know what kind of
definition the run has.
"""

from __future__ import annotations

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    AttemptLost,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Condemned,
    Continuation,
    Forked,
    Proceed,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
    StartRepeated,
    TimerFired,
)
from ductor_stream.engine.reduce import attempt, child, control, signal, start, timer
from ductor_stream.engine.state import Held


def reduce(draft: Draft, event: AnyEvent, now: int) -> list[Held] | None:
    """Apply one event at time ``now`` (ms); the draft's run exists."""
    match event:
        case AttemptFinished():
            return attempt.finished(draft, event, now)
        case TimerFired():
            return timer.fired(draft, event, now)
        case SignalReceived():
            return signal.received(draft, event, now)
        case AttemptTimedOut():
            return attempt.timed_out(draft, event, now)
        case AttemptLost():
            return attempt.lost(draft, event, now)
        case RunTimedOut():
            return control.run_timed_out(draft, event, now)
        case CommandReceived():
            return control.command(draft, event, now)
        case Redeployed():
            return control.redeployed(draft, event, now)
        case Condemned():
            return control.condemned(draft, event, now)
        case ChildFinished():
            return child.finished(draft, event, now)
        case Proceed():
            return control.proceed(draft, event)
        case Continuation() | Forked():
            return None
        case RunStarted():
            return start.again(draft, event, now)
        case StartRepeated():
            start.repeated(draft, event, now)
            return None
