"""A run that is held up, by a pause or for want of its code, hears afterwards all that it would have heard.

Each test compares it with a twin that was never held up and met the same events at the same times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.actions import DispatchAttempt, StartChild
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Failure,
    Redeployed,
    SignalReceived,
)
from ductor_stream.engine.state import AnyDecision, Node
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import choices, examples, function_of, programs, workflow

NO = Failure("user", "Oops", "no", retryable=False)
AGAIN = Failure("user", "Oops", "not yet")


def _pause(driver: Driver, definition: WorkflowDefinition) -> None:
    driver.order("pause")


def _resume(driver: Driver, definition: WorkflowDefinition) -> None:
    driver.order("resume")


def _withdraw_code(driver: Driver, definition: WorkflowDefinition) -> None:
    driver.deploy()


def _bring_code(driver: Driver, definition: WorkflowDefinition) -> None:
    driver.deploy(definition)
    driver.hear(Redeployed(definition.digest, definition.version))


def _for_node(node: Node, execution: int, number: int) -> AnyEvent | None:
    fence = (execution, node.node_id, node.generation)
    if node.kind == "child":
        return ChildFinished(execution, node.node_id, "child", "completed", b"%d" % number)
    if node.kind != "step" or node.status != "dispatched":
        return None
    return [
        AttemptFinished(*fence, "completed", b"%d" % number),
        AttemptFinished(*fence, "completed", b"null"),
        AttemptFinished(*fence, "failed", None, NO),
        AttemptFinished(*fence, "failed", None, AGAIN),
        AttemptFinished(*fence, "rejected", None, AGAIN),
        AttemptFinished(*fence, "cancelled", None, NO),
        AttemptTimedOut(*fence, "heartbeat_lost"),
    ][number % 7]


def _meanwhile(driver: Driver, numbers: list[int]) -> list[Stamped]:
    """At most one event for each node that is open now, in some order, and signals and a cancel between them."""
    events: list[AnyEvent] = []
    for node, number in zip(driver.state.nodes.values(), numbers, strict=False):
        if event := _for_node(node, driver.header.execution, number):
            events.insert(number % (len(events) + 1), event)
    for place, number in enumerate(numbers[:3]):
        events.insert(number % (len(events) + 1), SignalReceived(f"later-{place}", "xy"[number % 2], b"1"))
    if numbers[3] % 4 == 0:
        events.insert(numbers[4] % (len(events) + 1), CommandReceived("cancel", "cancel"))
    return [Stamped(driver.header.now + 10 * place, event) for place, event in enumerate(events, 1)]


def _decided(driver: Driver, since: int) -> list[AnyDecision]:
    return [decision for record in driver.records[since:] for decision in record.decisions or ()]


@pytest.mark.parametrize(("hold_up", "let_go"), [(_pause, _resume), (_withdraw_code, _bring_code)])
@examples(100)
@given(programs, choices, choices)
@abandoning()
def test_what_came_meanwhile_is_heard_in_its_order_and_at_its_time(
    hold_up: Callable[..., None], let_go: Callable[..., None], program: Any, chosen: list[int], numbers: list[int]
) -> None:
    definition = workflow(function_of(program))
    free = Driver(definition).run_through(chosen[: numbers[-1] % 9])
    if free.state.closed:
        return
    held = Driver(definition)
    held.apply(*free.applied)
    events, since, sent = _meanwhile(free, numbers), len(free.records), len(held.actions)
    free.apply(*events)
    hold_up(held, definition)
    for event in events:
        held.apply(event)
    assert not [action for action in held.actions[sent:] if isinstance(action, (DispatchAttempt, StartChild))]
    let_go(held, definition)
    assert _decided(held, since) == _decided(free, since)
    assert held.status == free.status
    assert (held.header.result, held.header.failure) == (free.header.result, free.header.failure)
    assert held.state.nodes.keys() == free.state.nodes.keys()
    assert {n: node.due_at for n, node in held.state.nodes.items()} == {
        n: node.due_at for n, node in free.state.nodes.items()
    }
    assert held.state.held == []


@examples(60)
@given(programs, choices, st.lists(st.integers(1, 6), min_size=1, max_size=4))
@abandoning()
def test_a_pause_and_a_resume_with_nothing_between_leave_no_trace(
    program: Any, chosen: list[int], every: list[int]
) -> None:
    """But for their own records: the run ends in the same way, at any places and however often."""
    definition = workflow(function_of(program))
    straight = Driver(definition).run_through(chosen)
    stopping = Driver(definition)
    for number, event in enumerate(straight.applied):
        stopping.apply(event)
        if number % every[number % len(every)] == 0 and stopping.status == "running":
            now = stopping.header.now
            stopping.apply(Stamped(now, CommandReceived("pause", f"p{number}")))
            stopping.lose()
            stopping.apply(Stamped(now, CommandReceived("resume", f"r{number}")))
    assert stopping.state.nodes == straight.state.nodes
    assert stopping.state.signals == straight.state.signals
    assert _decided(stopping, 0) == _decided(straight, 0)
    assert (stopping.status, stopping.header.result) == (straight.status, straight.header.result)
