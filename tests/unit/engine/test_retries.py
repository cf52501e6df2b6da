"""When an attempt is tried again: the policy, what overrides it, and what ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.actions import CloseAttempt, DispatchAttempt
from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.events import AttemptFinished, Failure
from ductor_stream.engine.tick import wake_at
from ductor_stream.errors import StepError
from unit.engine.driver import Driver
from unit.engine.programs import examples, step, workflow

EXACT = RetryPolicy(max_attempts=5, initial_ms=100, factor=3, maximum_ms=1_000, jitter=0)


def started(options: StepOptions, run_id: str = "r") -> Driver:
    """A run that awaits one step with these options; its result tells how that ended."""

    async def tries(run: Any) -> Any:
        try:
            return await run.step(step("charge", options), 1)
        except StepError as error:
            return [error.type, error.attempts]

    driver = Driver(workflow(tries), run_id=run_id)
    driver.start()
    return driver


def with_policy(policy: RetryPolicy, run_id: str = "r") -> Driver:
    return started(StepOptions(retry=policy), run_id)


def backoff(driver: Driver) -> int:
    """How long (ms) the node waits before it is tried again."""
    node = driver.node("1")
    assert node.status == "backoff"
    assert node.due_at is not None
    return node.due_at - driver.header.now


# -- the policy -----------------------------------------------------------------------------


def test_delays_grow_by_the_factor_up_to_the_maximum() -> None:
    driver, delays = with_policy(EXACT), []
    for _ in range(4):
        driver.fail("1")
        delays.append(backoff(driver))
        driver.pass_time()
    assert delays == [100, 300, 900, 1_000]
    driver.fail("1", "GivenUp")
    assert driver.result == ["GivenUp", 5]


def test_each_try_has_its_own_generation_and_attempt_number() -> None:
    driver = with_policy(EXACT)
    for _ in range(2):
        driver.fail("1")
        driver.pass_time()
    sent = [action.node for action in driver.done(DispatchAttempt)]
    assert [(node.generation, node.attempt) for node in sent] == [(1, 1), (2, 2), (3, 3)]
    assert sent[2].last_failure == Failure("user", "Oops", "no")
    assert [action.node.generation for action in driver.done(CloseAttempt)] == [1, 2]


def test_a_back_off_is_one_generation_further_already() -> None:
    """Protocol: the generation goes up in the commit that closes the old attempt, so its late echo cannot count."""
    driver = with_policy(EXACT)
    done = driver.fail("1")
    assert (driver.node("1").generation, driver.node("1").attempt) == (2, 2)
    echo = driver.hear(done.records[0].event)
    assert echo.records == []
    assert [type(action).__name__ for action in echo.actions] == ["RecordLate"]


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        (RetryPolicy(), Failure("user", "Oops", "no", retryable=False)),
        (RetryPolicy(non_retryable=("Gone", "CardDeclined")), Failure("user", "CardDeclined", "no")),
        (RetryPolicy(max_attempts=1), Failure("user", "Oops", "no")),
        (RetryPolicy(), Failure("user", "Oops", "no", retryable=False, retry_after_ms=5)),
    ],
)
def test_what_is_not_tried_again(policy: RetryPolicy, failure: Failure) -> None:
    driver = with_policy(policy)
    driver.finish("1", failure=failure)
    assert driver.result == [failure.type, 1]


@pytest.mark.parametrize(("asked", "waits"), [(0, 0), (7, 7), (86_400_000, 86_400_000), (-5, 0)])
def test_retry_after_overrides_the_policys_delay(asked: int, waits: int) -> None:
    driver = with_policy(EXACT)
    driver.fail("1", retry_after_ms=asked)
    assert backoff(driver) == waits


def test_a_report_without_a_reason_is_still_a_failure() -> None:
    driver = with_policy(RetryPolicy(max_attempts=1))
    driver.hear(AttemptFinished(1, "1", 1, "failed"))
    assert driver.result == ["Unknown", 1]


def test_an_attempt_that_was_cancelled_is_not_tried_again() -> None:
    driver = with_policy(EXACT)
    driver.hear(AttemptFinished(1, "1", 1, "cancelled"))
    assert driver.result == ["StepCancelled", 1]


# -- numbers that could go wrong --------------------------------------------------------------


@examples(200)
@given(
    st.builds(
        RetryPolicy,
        initial_ms=st.integers(0, 10**9),
        factor=st.floats(1, 1e308),
        maximum_ms=st.integers(0, 10**10),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 100_000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_a_number_between_nothing_and_twice_the_maximum(
    policy: RetryPolicy, attempt: int, spread: float
) -> None:
    assert 0 <= policy.delay_ms(attempt, spread) <= 2 * policy.maximum_ms


def test_a_slowly_growing_delay_reaches_its_maximum_too() -> None:
    policy = RetryPolicy(initial_ms=1_000, factor=1.01, maximum_ms=60_000, jitter=0)
    assert [policy.delay_ms(n, 0.5) for n in (2, 100, 413, 10**6)] == [1_010, 2_678, 60_000, 60_000]


def test_jitter_spreads_by_its_share_and_every_replay_says_the_same() -> None:
    """By the fence: retries of a fan-out do not come back together."""
    policy = RetryPolicy(initial_ms=10_000, jitter=0.2)
    assert [policy.delay_ms(1, spread) for spread in (0, 0.25, 0.5, 0.75)] == [8_000, 9_000, 10_000, 11_000]
    delays: dict[str, int] = {}
    for number in range(100):
        driver = with_policy(policy, run_id := f"run-{number}")
        driver.fail("1")
        delays[run_id] = backoff(driver)
    assert all(8_000 <= delay <= 12_000 for delay in delays.values())
    assert len(set(delays.values())) > 80
    assert min(delays.values()) < 9_000
    assert max(delays.values()) > 11_000
    again = with_policy(policy, "run-7")
    again.fail("1")
    assert backoff(again) == delays["run-7"]


# -- schedule_to_close ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [350, 400])
def test_no_retry_begins_at_or_after_schedule_to_close(limit: int) -> None:
    """The third try would begin at 400 ms, which is when, or after, all tries together are over."""
    driver = started(StepOptions(retry=EXACT, schedule_to_close_ms=limit))
    driver.finish("1", failure=Failure("user", "First", "no"), at=1_000)
    driver.pass_time()
    driver.finish("1", failure=Failure("user", "Second", "no"), at=1_100)
    assert driver.result == ["Second", 2]


def test_a_retry_that_still_fits_is_made() -> None:
    driver = started(StepOptions(retry=EXACT, schedule_to_close_ms=401))
    for at in (1_000, 1_100):
        driver.finish("1", failure=Failure("user", "Oops", "no"), at=at)
        driver.pass_time()
    assert [node.node.attempt for node in driver.done(DispatchAttempt)] == [1, 2, 3]


# -- rejected ---------------------------------------------------------------------------------


def reject(driver: Driver) -> None:
    node = driver.node("1")
    failure = Failure("step_unknown", "StepUnknown", "no worker here knows step charge")
    driver.hear(AttemptFinished(1, "1", node.generation, "rejected", None, failure))


def test_a_rejected_attempt_is_offered_again_after_one_second_to_one_minute() -> None:
    """A rolling deploy of a new step fails no run: the attempt number stays, the generation goes up."""
    driver, delays = with_policy(RetryPolicy(max_attempts=1)), []
    for turn in range(1, 10):
        reject(driver)
        delays.append(backoff(driver))
        assert (driver.node("1").attempt, driver.node("1").generation) == (1, turn + 1)
        assert driver.node("1").last_failure is not None
        driver.pass_time()
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    driver.finish("1", "at last")
    assert driver.result == "at last"


def test_a_failure_between_rejections_starts_their_delays_anew() -> None:
    driver = with_policy(EXACT)
    for _ in range(3):
        reject(driver)
        driver.pass_time()
    driver.fail("1")
    assert driver.node("1").rejections == 0
    driver.pass_time()
    reject(driver)
    assert backoff(driver) == 1_000
    assert driver.node("1").attempt == 2


# -- while it waits ---------------------------------------------------------------------------


def test_nothing_is_sent_before_its_time_and_then_once() -> None:
    driver = with_policy(EXACT)
    driver.fail("1")
    due = wake_at(driver.state)
    assert due == driver.header.now + 100
    driver.pass_time(due - 1)
    assert driver.dispatched() == ["1"]
    driver.pass_time(due)
    driver.pass_time(due)
    assert driver.dispatched() == ["1", "1"]


def test_a_cancel_while_backing_off_ends_it_at_once() -> None:
    driver = with_policy(EXACT)
    driver.fail("1")
    done = driver.order("cancel")
    assert driver.status == "cancelled"
    assert [type(action).__name__ for action in done.actions] == ["EmitLifecycle"], "no attempt is out to be stopped"
    assert wake_at(driver.state) is None


def test_what_the_last_heartbeat_said_reaches_the_next_attempt() -> None:
    driver = with_policy(EXACT)
    event = AttemptFinished(1, "1", 1, "failed", None, Failure("user", "Oops", "no"), details=b'{"page":17}')
    driver.hear(event)
    driver.pass_time()
    driver.hear(msgspec.structs.replace(event, generation=2, details=None))
    driver.pass_time()
    assert [action.node.details for action in driver.done(DispatchAttempt)] == [None, b'{"page":17}', b'{"page":17}']
