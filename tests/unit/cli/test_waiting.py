"""``runs show`` says in one sentence why a run waits: one test for each waiting state."""

from __future__ import annotations

from typing import Any

import pytest

from ductor_stream.cli.waiting import Surroundings, awaited_queues, why
from ductor_stream.engine.definition import ChildOptions, StepOptions
from ductor_stream.engine.events import Failure
from ductor_stream.engine.state import FORMAT, Header, Node, Parked, RunState
from ductor_stream.kafka.inspection import QueueFacts
from ductor_stream.store.rows import Beat, PutOff

T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
PAYMENTS = StepOptions(queue="payments")
OUT = "step charge, attempt 1, dispatched to queue payments at 2026-01-01T00:00:00Z (node 1)"


def run(*nodes: Node, status: Any = "running", parked: Parked | None = None) -> RunState:
    header = Header(FORMAT, "r", "fulfil", "1", 1, status, 1, T0, 1, T0, b"{}", parked=parked)
    return RunState(header, {node.node_id: node for node in nodes})


def charge(node_id: str = "1", **changes: Any) -> Node:
    fields = {"status": "dispatched", "created_at": T0, "options": PAYMENTS, "dispatched_at": T0, **changes}
    return Node(node_id, "step", "charge", **fields)


def sentence(state: RunState, **around: Any) -> str | None:
    return why(state, T0, Surroundings(**around))


def test_no_consumer_on_the_queue() -> None:
    told = sentence(run(charge()), queues={"payments": QueueFacts(consumers=0, waiting=3)})
    assert told == (
        f"{OUT}; no consumer on queue payments (3 task(s) wait), "
        "start one: `ductor-stream worker MODULE:APP --queue payments`"
    )


def test_tasks_wait_on_the_queue() -> None:
    told = sentence(run(charge()), queues={"payments": QueueFacts(consumers=2, waiting=17)})
    assert told == f"{OUT}; 17 task(s) wait on queue payments for 2 consumer(s)"


def test_taken_by_a_consumer_and_not_heard_of_yet() -> None:
    told = sentence(run(charge()), queues={"payments": QueueFacts(consumers=2, waiting=0)})
    assert told == f"{OUT}; taken by one of 2 consumer(s) on queue payments, nothing heard of it yet"


def test_an_attempt_is_running_on_a_worker() -> None:
    beat = Beat(1, "1", 1, T0 + 1000, T0 + 9000, "pod-7", None)
    state = run(charge())
    assert awaited_queues(state, {"1": beat}) == []
    assert sentence(state, beats={"1": beat}) == (
        "step charge, attempt 1, running since 2026-01-01T00:00:01Z on pod-7, "
        "last heard of at 2026-01-01T00:00:09Z (node 1)"
    )


def test_a_worker_that_does_not_say_who_it_is() -> None:
    beat = Beat(1, "1", 1, T0 + 1000, T0 + 9000, "", None)
    told = sentence(run(charge()), beats={"1": beat})
    assert told is not None and "running since 2026-01-01T00:00:01Z, last heard of" in told


def test_a_heartbeat_of_an_older_generation_says_nothing() -> None:
    beat = Beat(1, "1", 1, T0, T0, "pod-7", None)
    state = run(charge(generation=2, attempt=2))
    assert awaited_queues(state, {"1": beat}) == ["payments"]
    assert "dispatched to queue payments" in (sentence(state, beats={"1": beat}) or "")


def test_a_step_backs_off() -> None:
    node = charge(
        status="backoff",
        due_at=T0 + 60_000,
        attempt=3,
        last_failure=Failure("step_failed", "BankClosed", "until Monday"),
    )
    assert sentence(run(node)) == (
        "step charge backs off until 2026-01-01T00:01:00Z, attempt 3 next after BankClosed: until Monday (node 1)"
    )


def test_no_worker_knows_the_step() -> None:
    told = sentence(run(charge(status="backoff", due_at=T0 + 60_000, rejections=2)))
    assert told == "no worker on payments knows step charge; offered again at 2026-01-01T00:01:00Z (node 1)"


def test_a_signal_is_missing() -> None:
    assert sentence(run(Node("2", "signal", "approved", "waiting", T0))) == "signal approved is missing (node 2)"


def test_a_timer() -> None:
    node = Node("2", "timer", "", "waiting", T0, due_at=T0 + 3_600_000)
    assert sentence(run(node)) == "timer until 2026-01-01T01:00:00Z (node 2)"


def test_inputs_that_wait_in_the_inbox() -> None:
    """R9: whatever else it waits for, what keeps its inputs from it comes first."""
    state = run(Node("2", "signal", "approved", "waiting", T0))
    assert sentence(state, put_off=PutOff(2, 3, None)) == (
        "2 input(s) wait in the inbox: something else writes its row, version checks were lost in 3 round(s); "
        "signal approved is missing (node 2)"
    )
    assert sentence(state, put_off=PutOff(1, 0, T0 + 60_000)) == (
        "1 input(s) wait in the inbox until 2026-01-01T00:01:00Z: another session keeps its row locked, or they need "
        "another release; signal approved is missing (node 2)"
    )


@pytest.mark.parametrize(
    ("known", "told"), [({"2": "suspended"}, "; it is suspended"), ({"2": ""}, "; it has not begun yet"), ({}, "")]
)
def test_a_child_run(known: dict[str, str], told: str) -> None:
    node = Node("2", "child", "shipping", "waiting", T0, child=ChildOptions("r-ship"))
    assert sentence(run(node), children=known) == f"child run r-ship of shipping has not ended (node 2){told}"


def test_paused() -> None:
    assert sentence(run(charge(), status="paused")) == "paused; 0 event(s) held until it is resumed"


def test_suspended_by_a_bug() -> None:
    parked = Parked("bug", "TypeError: no (shop.py:12)")
    assert sentence(run(charge(), status="suspended", parked=parked)) == (
        "suspended, bug: TypeError: no (shop.py:12); deploy other code under version 1, or resume it"
    )


def test_its_version_is_not_deployed() -> None:
    parked = Parked("version_missing", "fulfil version 1 is not deployed here")
    told = sentence(run(charge(), status="suspended", parked=parked))
    assert told is not None
    assert told.startswith("suspended, version_missing: fulfil version 1 is not deployed here")


def test_no_coordinator_is_up() -> None:
    told = sentence(run(charge()), coordinators=0)
    assert told == f"no coordinator is up, start one (`ductor-stream coordinator MODULE:APP`); until then: {OUT}"


def test_of_many_nodes_three_are_named() -> None:
    nodes = [charge(str(number), options=StepOptions(queue=f"q{number}")) for number in range(10)]
    assert awaited_queues(run(*nodes), {}) == ["q0", "q1", "q2"]
    told = sentence(run(*nodes)) or ""
    assert told.endswith("(node 2); and 7 more")
    assert told.count("step charge") == 3


def test_without_kafka_the_engines_sentence_stands() -> None:
    assert sentence(run(charge())) == OUT


def test_a_closed_run_waits_for_nothing() -> None:
    assert sentence(run(status="completed"), coordinators=0) is None
