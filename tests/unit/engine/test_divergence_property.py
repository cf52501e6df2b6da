"""Non-determinism is found where, and only where, the deployed code would have decided otherwise.

The judge is simple: a fresh run of the changed program that meets the same events. If its decisions are the recorded
ones, replay has to go through; if not, the run has to be suspended, before anything is decided on a false history.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.state import Record
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import choices, examples, function_of, leaves, programs, workflow


def _changed(program: Any, place: list[int], leaf: Any) -> Any:
    """The program with its n-th leaf replaced; ``place`` counts down."""
    match program:
        case (("step" | "sleep" | "signal" | "map"), *_) | (str(),):
            place[0] -= 1
            return leaf if place[0] == -1 else program
        case (kind, list() as parts):
            return (kind, [_changed(part, place, leaf) for part in parts])
        case ("timeout" | "within" as kind, seconds, part):
            return (kind, seconds, _changed(part, place, leaf))
        case (kind, *parts):
            return (kind, *(_changed(part, place, leaf) for part in parts))
    raise AssertionError(program)


def _same_decisions(recorded: list[Record], fresh: list[Record]) -> bool:
    """Options of steps aside, which these programs do not change."""
    return [msgspec.msgpack.encode(r) for r in recorded] == [msgspec.msgpack.encode(r) for r in fresh]


@examples(200)
@given(programs, st.integers(0, 5), leaves, choices)
@abandoning()
def test_a_run_is_suspended_exactly_when_the_new_code_would_have_decided_otherwise(
    program: Any, place: int, leaf: Any, chosen: list[int]
) -> None:
    changed = _changed(program, [place], leaf)
    if "patched" in str((program, changed)):
        return  # a patch decides otherwise in replay on purpose
    driver = Driver(workflow(function_of(program), digest="old")).run_through(chosen)
    *before, last = driver.applied
    owner, judge = (
        Driver(workflow(function_of(program), digest="old")),
        Driver(workflow(function_of(changed), digest="new")),
    )
    for event in before:
        owner.apply(event)
        judge.apply(event)
    if owner.committed is None or owner.state.closed:
        return
    fits = _same_decisions(owner.records, judge.records)
    owner.deploy(*judge.definitions.values())
    recorded = len(owner.records)
    owner.apply(Stamped(last.now, last.event))
    asked = any(record.decisions is not None or record.parked is not None for record in owner.records[recorded:])
    if asked:
        assert (owner.header.parked is None) == fits, owner.header.parked
        assert fits or owner.parked[0] == "nondeterminism"
