"""R2, R10: any program, any batching of its events, any point of cache loss: the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from ductor_stream.engine.actions import CloseAttempt, CommandChild, DispatchAttempt, StartChild, StopAttempt
from ductor_stream.engine.events import AttemptFinished, ChildFinished, RunStarted, TimerFired
from ductor_stream.engine.state import decode_records, encode_records, state_bytes
from ductor_stream.engine.tick import rebuild
from unit.engine.driver import Driver, abandoning, ticked
from unit.engine.programs import choices, examples, function_of, programs, workflow

_SENT = (DispatchAttempt, StartChild)
_TAKEN_BACK = (*_SENT, StopAttempt, CommandChild)


def _bytes(things: Sequence[Any]) -> list[bytes]:
    return [msgspec.msgpack.encode(thing) for thing in things]


def _lasting(driver: Driver) -> list[bytes]:
    """The actions that no batching may change: all but what is sent, and then stopped."""
    return _bytes([action for action in driver.actions if not isinstance(action, _TAKEN_BACK)])


def _wanted(driver: Driver) -> dict[tuple[str, int], bytes]:
    """What was sent, and neither answered nor stopped: as it was sent last, and noted as sent once before."""
    ended = {(a.node.node_id, a.node.generation) for a in driver.actions if isinstance(a, (StopAttempt, CommandChild))}
    ended |= {(a.node.node_id, a.node.generation) for a in driver.done(CloseAttempt)}
    ended |= {(r.event.node_id, 1) for r in driver.records if isinstance(r.event, ChildFinished)}
    wanted: dict[tuple[str, int], bytes] = {}
    for action in driver.actions:
        if isinstance(action, _SENT) and (key := (action.node.node_id, action.node.generation)) not in ended:
            noted = isinstance(action, StartChild) or not action.again
            assert noted or key in wanted, f"{key} was sent again before anything says that it was sent"
            wanted[key] = msgspec.msgpack.encode(action.node)
    return wanted


def _again(lived: Driver, batches: Sequence[tuple[int, bool]]) -> Driver:
    """The same events, in batches, the coroutine being lost after some of them."""
    other = Driver(*lived.definitions.values())
    left = list(lived.applied)
    for number in range(len(left)):
        size, loses = batches[number % len(batches)]
        if left:
            other.apply(*left[:size])
            left = left[size:]
        if loses:
            other.lose()
    return other


_SENT_AGAIN_BEFORE_IT_WAS_SENT = {
    "program": ("seq", [("race", [("step", "a", 0), ("shield", ("step", "a", 0))]), *[("step", "a", 0)] * 3]),
    "chosen": [0, 425, 0, 0, 0, 0, 2, 1, 1, 0, 2, 0, 5],
    "batches": [(2, False)],
}


@examples(150)
@given(programs, choices, st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4))
@example(**_SENT_AGAIN_BEFORE_IT_WAS_SENT)
@abandoning()
def test_batching_and_cache_loss_change_nothing(
    program: Any, chosen: list[int], batches: list[tuple[int, bool]]
) -> None:
    lived = Driver(workflow(function_of(program))).run_through(chosen)
    other = _again(lived, batches)
    assert state_bytes(other.state) == state_bytes(lived.state)
    assert _bytes(other.records) == _bytes(lived.records)
    assert _lasting(other) == _lasting(lived)
    assert _wanted(other) == _wanted(lived)


@examples(100)
@given(programs, choices)
@abandoning()
def test_records_rebuild_the_state(program: Any, chosen: list[int]) -> None:
    lived = Driver(workflow(function_of(program))).run_through(chosen)
    read = decode_records(encode_records(lived.history()))
    assert state_bytes(rebuild("r", read)) == state_bytes(lived.state)


@examples(150)
@given(programs, choices)
@abandoning()
def test_a_tick_leaves_its_input_alone_and_repeats_itself(program: Any, chosen: list[int]) -> None:
    lived = Driver(workflow(function_of(program))).run_through(chosen)
    half = len(lived.applied) // 2
    driver = Driver(*lived.definitions.values())
    for event in lived.applied[: half or 1]:
        driver.apply(event)
    before = state_bytes(driver.state)
    history, rest = driver.history(), lived.applied[half or 1 :]
    once = ticked(driver.definitions, "r", driver.state, rest, history=history)
    again = ticked(driver.definitions, "r", driver.state, rest, history=history)
    assert state_bytes(driver.state) == before
    assert once.state is not None
    assert again.state is not None
    assert state_bytes(once.state) == state_bytes(again.state)
    assert _bytes(once.records) == _bytes(again.records)
    assert _bytes(once.actions) == _bytes(again.actions)


_ONCE = (AttemptFinished, TimerFired, ChildFinished, RunStarted)


@examples(150)
@given(programs, choices, st.lists(st.integers(0, 30), min_size=1, max_size=10))
@abandoning()
def test_what_comes_twice_changes_nothing(program: Any, chosen: list[int], again: list[int]) -> None:
    """R6, R8: each result, timer and start delivered again at any later time changes nothing."""
    lived = Driver(workflow(function_of(program))).run_through(chosen)
    other = Driver(*lived.definitions.values())
    for number, event in enumerate(lived.applied):
        other.apply(event)
        before, records = state_bytes(other.state), len(other.records)
        repeated = lived.applied[again[number % len(again)] % (number + 1)]
        if isinstance(repeated.event, _ONCE):
            other.apply(repeated)
        assert state_bytes(other.state) == before
        assert len(other.records) == records
    assert state_bytes(other.state) == state_bytes(lived.state)
