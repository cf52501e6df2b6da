"""What a tick tells the outside, to the letter: who ended what, with which words, and what is handed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductor_stream.engine.actions import CloseAttempt, EmitLifecycle, RecordLate, StopAttempt
from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Condemned,
    Failure,
    Proceed,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
)
from ductor_stream.engine.state import Parked
from ductor_stream.engine.tick import Stamped, Tick, tick
from ductor_stream.errors import InvariantViolation, TerminalError
from unit.engine.driver import Driver, ticked
from unit.engine.programs import CHILD, step, workflow

ONCE = StepOptions(retry=RetryPolicy(max_attempts=1))


def started(options: StepOptions = ONCE, **more: Any) -> Driver:
    """A run whose step ``one`` is out."""

    async def program(run: Any) -> Any:
        return await run.step(step("one", options))

    driver = Driver(workflow(program))
    driver.start(**more)
    return driver


# -- the tick as a whole ------------------------------------------------------------------


def test_no_run_and_no_event_is_nothing() -> None:
    assert tick({}, "r", None, []) == Tick(None, [], [], None, None)


def test_what_is_no_start_needs_a_run_and_says_so() -> None:
    with pytest.raises(InvariantViolation, match=r"^run r has no state and the event is no start: SignalReceived$"):
        tick({}, "r", None, [Stamped(1, SignalReceived("s", "x", b"1"))])


def test_the_coroutine_that_is_handed_in_serves_the_next_tick() -> None:
    async def program(run: Any) -> Any:
        return [await run.step(step("one")), await run.step(step("two"))]

    driver = Driver(workflow(program))
    before = driver.start().live
    assert before is not None
    assert driver.finish("1", 1).live is before


def test_code_that_may_not_run_does_not() -> None:
    driver = started()
    why = Parked("owner_died", "its owners died over it")
    event = AttemptFinished(1, "1", 1, "completed", b"1")
    done = ticked(driver.definitions, "r", driver.state, [Stamped(2_000, event)], history=driver.history(), parked=why)
    assert done.state is not None
    assert (done.state.header.status, done.state.header.parked) == ("suspended", why)
    assert [each.type for each in done.actions if isinstance(each, EmitLifecycle)] == ["run.suspended"]


@pytest.mark.parametrize("kind", ["retry", "reset"])
def test_a_fork_says_what_ended_the_execution_before_it(kind: Any) -> None:
    driver = started()
    more = {"to_node": "1"} if kind == "reset" else {}
    if kind == "retry":
        driver.fail("1")
        assert driver.status == "failed"
    driver.actions.clear()
    driver.order(kind, **more)
    ends = [each for each in driver.done(EmitLifecycle) if each.type == "run.terminated"]
    if kind == "retry":
        assert ends == []
        return
    assert [(end.execution, end.now, end.reason) for end in ends] == [(1, driver.header.now, "reset command-1")]


def test_lines_of_all_executions_of_one_tick_are_kept() -> None:
    async def laps(run: Any) -> Any:
        run.log.info(f"lap {run.info.execution}")
        if run.info.execution < 3:
            run.continue_as_new()

    driver = Driver(workflow(laps))
    begin = RunStarted("wf", "1", input=b"null", start_id="s")
    done = driver.apply(*(Stamped(1_000 + n, event) for n, event in enumerate((begin, Proceed(2), Proceed(3)))))
    assert [line[1] for line in done.lines] == ["lap 1", "lap 2", "lap 3"]


# -- attempts -----------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "failed", "rejected", "cancelled"])
def test_the_end_of_an_attempt_is_recorded_as_it_was_reported(outcome: Any) -> None:
    driver = started()
    node = driver.node("1")
    event = AttemptFinished(1, "1", 1, outcome, b"7" if outcome == "completed" else None, None)
    driver.hear(event)
    assert driver.done(CloseAttempt) == [CloseAttempt(1, node, event)]
    assert driver.done(RecordLate) == []


@pytest.mark.parametrize("fence", [(2, "1", 1), (1, "2", 1), (1, "1", 2)], ids=["execution", "node", "generation"])
def test_a_result_that_is_nobodys_is_recorded_as_late_and_changes_nothing(fence: tuple[int, str, int]) -> None:
    driver = started()
    before = driver.state
    event = AttemptFinished(*fence, "completed", b"7")
    done = driver.hear(event)
    assert (done.actions, done.records) == ([RecordLate(event)], [])
    assert driver.state == before


@pytest.mark.parametrize(
    ("event", "heard"),
    [
        (AttemptFinished(1, "1", 1, "completed", None), ["result", None]),
        (AttemptFinished(1, "1", 1, "completed", b"5"), ["result", 5]),
        (AttemptFinished(1, "1", 1, "failed", None, None), ["user", "Unknown", "the worker gave no reason"]),
        (
            AttemptFinished(1, "1", 1, "cancelled", None, None),
            ["cancelled", "StepCancelled", "the worker gave no reason"],
        ),
        (
            AttemptFinished(1, "1", 1, "cancelled", None, Failure("user", "Boom", "as asked")),
            ["cancelled", "StepCancelled", "as asked"],
        ),
        (AttemptTimedOut(1, "1", 1, "worker_lost"), ["worker_lost", "StepTimeout", "step one: worker lost"]),
        (
            AttemptTimedOut(1, "1", 1, "timeout_start_to_close"),
            ["timeout_start_to_close", "StepTimeout", "step one: timeout start to close"],
        ),
        (
            AttemptTimedOut(1, "1", 1, "dispatch_lost"),
            ["dispatch_lost", "TaskLost", "step one: its task was sent 1 times, and each time nobody began it"],
        ),
    ],
)
def test_what_the_code_hears_of_the_end(event: Any, heard: Any) -> None:
    driver = started()
    driver.hear(event)
    failure = driver.header.failure
    found = ["result", driver.result] if failure is None else [failure.code, failure.type, failure.message]
    assert found == heard


def test_a_worker_that_is_given_up_is_told_why() -> None:
    driver = started()
    node = driver.node("1")
    event = AttemptTimedOut(1, "1", 1, "worker_lost")
    driver.hear(event)
    assert driver.done(StopAttempt) == [StopAttempt(1, node, "worker_lost")]
    assert driver.done(CloseAttempt) == [CloseAttempt(1, node, event)]


@pytest.mark.parametrize("code", ["timeout_schedule_to_close", "timeout_schedule_to_start", "dispatch_lost"])
def test_where_another_attempt_would_not_help_there_is_none(code: Any) -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=5)))
    driver.time_out("1", code)
    assert driver.status == "failed"


@pytest.mark.parametrize("code", ["worker_lost", "timeout_start_to_close", "timeout_heartbeat"])
def test_elsewhere_there_is_another_one(code: Any) -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=5)))
    driver.time_out("1", code)
    node = driver.node("1")
    assert (node.status, node.generation, node.attempt, node.redrives, node.sent_at) == ("backoff", 2, 2, 0, 0)
    assert node.last_failure is not None
    assert node.last_failure.code == code


def test_a_task_that_nobody_can_take_is_offered_again_ever_later_up_to_a_minute() -> None:
    driver = started()
    waits = []
    for number in range(9):
        event = AttemptFinished(1, "1", driver.node("1").generation, "rejected", None, Failure("busy", "Busy", "no"))
        at = driver.header.now + 1
        driver.hear(event, at=at)
        node = driver.node("1")
        assert (node.status, node.attempt, node.rejections, node.generation) == ("backoff", 1, number + 1, number + 2)
        assert node.due_at is not None
        waits.append(node.due_at - at)
        driver.pass_time()
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_what_an_attempt_had_come_to_is_handed_to_the_next_one() -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=5)))
    failure = Failure("user", "Oops", "no")
    driver.hear(AttemptFinished(1, "1", 1, "failed", None, failure, details=b"7"))
    assert driver.node("1").details == b"7"
    driver.pass_time()
    driver.hear(AttemptFinished(1, "1", 2, "failed", None, failure))
    assert driver.node("1").details == b"7"


@pytest.mark.parametrize(
    ("more", "retries"),
    [
        ({"retryable": False}, False),
        ({"type": "Never"}, False),
        ({}, True),
        ({"retry_after_ms": 0}, True),
    ],
)
def test_who_is_tried_again(more: Any, retries: bool) -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=2, non_retryable=("Never",))))
    failure = Failure(**{"code": "user", "type": "Oops", "message": "no", **more})
    driver.finish("1", failure=failure)
    assert (driver.status == "running") is retries


@pytest.mark.parametrize(("after", "waits"), [(-5, 0), (0, 0), (7_000, 7_000)])
def test_a_worker_may_say_when(after: int, waits: int) -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=2)))
    driver.finish("1", failure=Failure("user", "Oops", "no", retry_after_ms=after), at=5_000)
    assert driver.node("1").due_at == 5_000 + waits


@pytest.mark.parametrize(("after", "retries"), [(3_999, True), (4_000, False)])
def test_no_retry_begins_when_its_time_is_over(after: int, retries: bool) -> None:
    """Created at 1,000 with five seconds in all, failed at 2,000."""
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=2), schedule_to_close_ms=5_000))
    driver.finish("1", failure=Failure("user", "Oops", "no", retry_after_ms=after), at=2_000)
    assert (driver.status == "running") is retries


def test_what_an_attempt_had_come_to_when_it_was_given_up_is_handed_on_too() -> None:
    driver = started(StepOptions(retry=RetryPolicy(max_attempts=5)))
    driver.hear(AttemptTimedOut(1, "1", 1, "worker_lost", details=b"7"))
    assert driver.node("1").details == b"7"


def test_a_child_without_a_result_has_none() -> None:
    async def program(run: Any) -> Any:
        return await run.child(CHILD, 1)

    driver = Driver(workflow(program))
    driver.start()
    driver.hear(ChildFinished(1, "1", "r/1/1", "completed", None))
    assert driver.result is None


# -- commands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "type", "reason"),
    [
        (["pause"], "run.paused", "why"),
        (["pause", "resume"], "run.resumed", "why"),
        (["terminate"], "run.terminated", "why"),
        (["pause", "terminate"], "run.terminated", "why"),
        (["resume"], "command.rejected", None),
        (["terminate", "pause"], "command.rejected", None),
    ],
)
def test_a_command_is_told_with_its_moment_and_its_reason(kinds: Any, type: str, reason: str | None) -> None:
    driver = started()
    for number, kind in enumerate(kinds):
        driver.hear(CommandReceived(kind, f"c{number}", reason="why"), at=5_000 + number)
    event = driver.done(EmitLifecycle)[-1]
    assert (event.type, event.execution, event.now) == (type, 1, 5_000 + len(kinds) - 1)
    if reason is None:
        assert event.about == f"c{len(kinds) - 1}"
    else:
        assert event.reason == reason


@pytest.mark.parametrize(
    ("event", "type", "failure"),
    [
        (
            Condemned("poisoned", "its data cannot be stored"),
            "run.failed",
            Failure("poisoned", "Condemned", "its data cannot be stored", retryable=False),
        ),
        (
            RunTimedOut(1),
            "run.timed_out",
            Failure("timeout_run", "RunTimedOut", "the run did not end within its timeout", retryable=False),
        ),
    ],
)
def test_an_end_from_outside_is_told_with_its_moment_and_its_cause(event: Any, type: str, failure: Failure) -> None:
    driver = started(run_timeout_ms=4_000)
    driver.hear(event, at=5_000)
    told = driver.done(EmitLifecycle)[-1]
    assert (told.type, told.execution, told.now, told.failure) == (type, 1, 5_000, failure)
    assert driver.header.failure == failure
    assert driver.header.failure.retryable is False


@pytest.mark.parametrize(
    ("raised", "type"),
    [
        (None, "run.completed"),
        (TerminalError("no"), "run.failed"),
        (asyncio.CancelledError(), "run.cancelled"),
        (ZeroDivisionError("a bug"), "run.suspended"),
    ],
)
def test_what_the_code_ends_in_is_told_with_its_moment(raised: BaseException | None, type: str) -> None:
    async def program(run: Any) -> Any:
        try:
            await run.step(step("one"))
        except asyncio.CancelledError:
            pass
        if raised is not None:
            raise raised

    driver = Driver(workflow(program))
    driver.start()
    if type == "run.cancelled":
        driver.hear(CommandReceived("cancel", "c1"), at=5_000)
    else:
        driver.finish("1", 1, at=5_000)
    event = driver.done(EmitLifecycle)[-1]
    assert (event.type, event.now) == (type, 5_000)


def test_a_signal_to_a_run_that_has_ended_is_refused_by_its_id() -> None:
    driver = started()
    driver.finish("1", 1)
    driver.actions.clear()
    driver.hear(SignalReceived("late", "x", b"1"), at=5_000)
    (event,) = driver.done(EmitLifecycle)
    assert (event.type, event.now, event.reason, event.about) == ("command.rejected", 5_000, "run_closed", "late")


@pytest.mark.parametrize(("digest", "goes_on"), [("d1", False), ("0123456789abcdef", True)])
def test_only_other_code_moves_a_suspended_run(digest: str, goes_on: bool) -> None:
    async def breaks(run: Any) -> Any:
        raise KeyError("x")

    driver = Driver(workflow(breaks))
    driver.start()
    assert driver.status == "suspended"
    driver.actions.clear()
    driver.hear(Redeployed(digest, "1"), at=5_000)
    resumed = [event for event in driver.done(EmitLifecycle) if event.type == "run.resumed"]
    assert [(event.now, event.reason) for event in resumed] == [(5_000, "code 0123456789ab deployed")] * goes_on


@pytest.mark.parametrize("event", [Redeployed("d2", "1"), Proceed(1), Proceed(2)])
def test_a_run_that_is_not_held_up_has_nothing_to_go_on_with(event: Any) -> None:
    driver = started()
    assert driver.hear(event).records == []
    driver.order("pause")
    assert driver.hear(event).records == []


def test_what_is_held_is_heard_by_its_own_execution_alone_and_not_while_the_run_is_paused() -> None:
    async def laps(run: Any) -> Any:
        if run.info.execution == 1:
            run.continue_as_new()
        return run.info.execution

    driver = Driver(workflow(laps))
    driver.start()
    assert driver.state.held != []
    assert driver.hear(Proceed(1)).records == []
    driver.order("pause")
    assert driver.hear(Proceed(2)).records == []
    driver.order("resume")
    if driver.status == "running":
        driver.hear(Proceed(2))
    assert driver.result == 2
