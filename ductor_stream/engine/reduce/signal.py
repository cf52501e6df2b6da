"""Signals: buffered in order until the workflow takes them."""

from __future__ import annotations

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import SignalReceived
from ductor_stream.engine.state import Held, SignalArrived


def received(draft: Draft, event: SignalReceived, now: int) -> list[Held] | None:
    """Buffer the signal. One that comes after the end is answered, so that its sender can learn of it."""
    if draft.state.closed:
        draft.refuse("run_closed", event.signal_id, now)
        return []
    signal = SignalArrived(event.signal_id, event.name, event.payload)
    draft.state.signals.append(signal)
    return [Held(now, signal)]
