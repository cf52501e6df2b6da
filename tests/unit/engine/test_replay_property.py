"""R2, R10: any program, any batching of its events, any point of cache loss: the same bytes."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.engine.programs import Driver, abandoning, events_only, function_of, programs, ticked, workflow

from ductor_stream.engine.state import decode_records, encode_records, state_bytes
from ductor_stream.engine.tick import rebuild


def _lived(program: Any, data: st.DataObject) -> Driver:
    driver = Driver(workflow(function_of(program)))
    driver.start()
    driver.answer(lambda n: data.draw(st.integers(0, n - 1)))
    return driver


@settings(max_examples=300, deadline=None)
@given(programs, st.data())
@abandoning()
def test_batching_and_cache_loss_change_nothing(program: Any, data: st.DataObject) -> None:
    lived = _lived(program, data)
    other = Driver(workflow(function_of(program)))
    events = list(lived.applied)
    while events:
        size = data.draw(st.integers(1, len(events)))
        other.apply(*events[:size])
        events = events[size:]
        if data.draw(st.booleans()):
            other.lose()
    assert lived.state is not None
    assert other.state is not None
    assert state_bytes(other.state) == state_bytes(lived.state)
    assert events_only(other.records) == events_only(lived.records)
    assert [msgspec.msgpack.encode(a) for a in lived.actions if type(a).__name__ == "EmitLifecycle"] == [
        msgspec.msgpack.encode(a) for a in other.actions if type(a).__name__ == "EmitLifecycle"
    ]


@settings(max_examples=200, deadline=None)
@given(programs, st.data())
@abandoning()
def test_records_rebuild_the_state(program: Any, data: st.DataObject) -> None:
    lived = _lived(program, data)
    assert lived.state is not None
    read = decode_records(encode_records(lived.history()))
    assert state_bytes(rebuild("r", read)) == state_bytes(lived.state)


@settings(max_examples=200, deadline=None)
@given(programs, st.data())
@abandoning()
def test_a_tick_leaves_its_input_alone_and_repeats_itself(program: Any, data: st.DataObject) -> None:
    lived = _lived(program, data)
    half = len(lived.applied) // 2
    driver = Driver(workflow(function_of(program)))
    for event in lived.applied[:half] or lived.applied[:1]:
        driver.apply(event)
    assert driver.state is not None
    before = state_bytes(driver.state)
    rest = lived.applied[half:] or lived.applied[:1]
    history = list(driver.history())
    once = ticked(driver.definitions, "r", driver.state, rest, history=history)
    again = ticked(driver.definitions, "r", driver.state, rest, history=history)
    assert state_bytes(driver.state) == before
    assert once.state is not None
    assert again.state is not None
    assert state_bytes(once.state) == state_bytes(again.state)
    assert events_only(once.records) == events_only(again.records)


@settings(max_examples=200, deadline=None)
@given(programs, st.data())
@abandoning()
def test_duplicates_change_nothing(program: Any, data: st.DataObject) -> None:
    """R6, R8: each result delivered again, at any later time, is late and changes nothing."""
    lived = _lived(program, data)
    assert lived.state is not None
    before, records = state_bytes(lived.state), len(lived.records)
    for stamped in lived.applied:
        if type(stamped.event).__name__ in ("AttemptFinished", "TimerFired", "RunStarted"):
            lived.apply(stamped)
    assert state_bytes(lived.state) == before
    assert len(lived.records) == records
