"""What workflow code is told, to the letter, and what is kept of how it ends: mutants of the planner live here."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ductor_stream.engine.actions import CommandChild, DispatchAttempt, EmitLifecycle, StopAttempt, TellParent
from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.events import ChildFinished, Failure, Parent, RunStarted, StartRepeated
from ductor_stream.engine.planners.outcome import is_user_code
from ductor_stream.engine.planners.run import CONTINUE_FROM, RunInfo
from ductor_stream.errors import ChildError, StepError
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import CHILD, signal, step, workflow

ONE, TWO = step("one"), step("two")
DIGEST = "the digest of this code"
ONCE = step("one", StepOptions(retry=RetryPolicy(max_attempts=1)))


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


def started(function: Any, **more: Any) -> Driver:
    """A run of that function."""
    driver = Driver(workflow(function, digest=DIGEST, **more))
    driver.start()
    return driver


# -- what comes while the run is paused ---------------------------------------------------


@pytest.mark.parametrize("late", ["result", "failure", "child", "failed child"])
def test_what_comes_for_a_node_that_has_lost_its_race_meanwhile_is_passed_over(late: str) -> None:
    """Both ended while the run was paused: it hears the first, drops the second, and then is told of the second."""
    child = "child" in late

    async def races(run: Any) -> Any:
        first = asyncio.ensure_future(run.step(ONE))
        second = asyncio.ensure_future(run.child(CHILD, 1) if child else run.step(ONCE))
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        return [await first, await run.step(TWO)]

    driver = started(races)
    driver.order("pause")
    driver.finish("1.1", "first")
    if child:
        status = "failed" if "failed" in late else "completed"
        driver.hear(ChildFinished(1, "2.1", "r/1/2.1", status, b"2"))
    elif late == "failure":
        driver.fail("2.1", retryable=False)
    else:
        driver.finish("2.1", "second")
    driver.order("resume")
    (after,) = driver.state.nodes
    driver.finish(after, "then")
    assert driver.result == ["first", "then"]


def test_a_child_that_lost_its_race_is_dropped() -> None:
    async def races(run: Any) -> Any:
        child = asyncio.ensure_future(run.child(CHILD, 1))
        found = await run.step(ONE)
        child.cancel()
        return [found, await run.step(TWO)]

    driver = started(races)
    child = driver.node("1.1")
    driver.finish("2", 5)
    assert [node.name for node in driver.state.nodes.values()] == ["two"]
    assert driver.done(CommandChild) == [CommandChild(1, child, "cancel", "no longer awaited")]


def test_the_rest_of_a_map_is_dropped_before_its_error_is_raised() -> None:
    async def maps(run: Any) -> Any:
        try:
            return await run.map(ONCE, range(4))
        except StepError as error:
            return [error.type, await run.step(TWO)]

    driver = started(maps)
    driver.actions.clear()
    driver.fail("1.1")
    kinds = [type(action) for action in driver.actions if isinstance(action, (DispatchAttempt, StopAttempt))]
    assert kinds == [StopAttempt] * 3 + [DispatchAttempt]
    (left,) = driver.state.nodes
    driver.finish(left, 8)
    assert driver.result == ["Oops", 8]


# -- what it is told ----------------------------------------------------------------------


def test_the_run_knows_who_it_is() -> None:
    async def looks(run: Any) -> Any:
        return list(run.info)

    assert RunInfo(*started(looks).result) == RunInfo("r", 1, "wf", "1", 1_000)


def test_an_id_is_a_random_uuid() -> None:
    async def draws(run: Any) -> Any:
        return [[each.version, each.variant, str(each)] for each in (run.uuid4(), run.uuid4())]

    first, second = started(draws).result
    assert first[:2] == second[:2] == [4, "specified in RFC 4122"]
    assert first[2] != second[2]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_line_of_the_log_has_its_level_its_words_and_its_fields(level: str) -> None:
    async def writes(run: Any) -> Any:
        getattr(run.log, level)("moved", amount=3)

    driver = Driver(workflow(writes))
    assert driver.start().lines == [(level, "moved", {"amount": 3})]


def test_a_signal_that_does_not_fit_is_told_with_its_id_and_why() -> None:
    async def waits(run: Any) -> Any:
        return await run.wait_signal(signal("count", int))

    driver = started(waits)
    done = driver.send("count", "many", id="s-7")
    [(level, message, fields)] = done.lines
    assert (level, message) == ("error", "signal passed over: its payload does not fit")
    assert str(fields["problem"]).startswith("payload of count: ")
    assert {**fields, "problem": ""} == {"signal": "count", "signal_id": "s-7", "problem": ""}


def test_the_workflows_value_of_a_step_is_made_of_its_output() -> None:
    made = step("one")
    made.definition = msgspec.structs.replace(made.definition, value_of=lambda found: ["made of", found])

    async def decides(run: Any) -> Any:
        return await run.step(made)

    driver = started(decides)
    driver.finish("1", 4)
    assert driver.result == ["made of", 4]


FAILURE = Failure("user", "Broken", "it broke", retryable=False, details=b'{"why":1}')


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (FAILURE, ["child run r/1/1 failed: it broke", "failed", "Broken", {"why": 1}]),
        (msgspec.structs.replace(FAILURE, message="", details=None), ["child run r/1/1 failed", "failed", "Broken", None]),
        (msgspec.structs.replace(FAILURE, details=b"\xff{"), ["child run r/1/1 failed: it broke", "failed", "Broken", "\ufffd{"]),
        (None, ["child run r/1/1 failed", "failed", "failed", None]),
    ],
    ids=["all", "without words", "details that are no JSON", "nothing"],
)  # fmt: skip
def test_the_end_of_a_child_is_told(failure: Failure | None, told: Any) -> None:
    async def asks(run: Any) -> Any:
        try:
            return await run.child(CHILD, 1)
        except ChildError as error:
            return [str(error), error.status, error.type, error.details]

    driver = started(asks)
    driver.hear(ChildFinished(1, "1", "r/1/1", "failed", None, failure))
    assert driver.result == told


def test_a_run_that_fails_because_of_its_child_hands_its_details_on() -> None:
    async def asks(run: Any) -> Any:
        return await run.child(CHILD, 1)

    driver = started(asks, fails_on=(ChildError,))
    driver.hear(ChildFinished(1, "1", "r/1/1", "failed", None, FAILURE))
    assert driver.header.failure == Failure(
        "child", "Broken", "child run r/1/1 failed: it broke", retryable=False, details=b'{"why":1}'
    )


# -- how it ends --------------------------------------------------------------------------


async def _stuck(run: Any) -> Any:
    await asyncio.get_running_loop().create_future()


async def _spins(run: Any) -> Any:
    while True:
        await asyncio.sleep(0)


async def _unfit(run: Any) -> Any:
    return "no number"


async def _breaks(run: Any) -> Any:
    raise KeyError("x")


async def _callback(run: Any) -> Any:
    def quits() -> None:
        raise SystemExit("enough")

    asyncio.get_running_loop().call_soon(quits)
    await run.step(ONE)


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        (_stuck, "stuck", "the workflow awaits nothing that can happen: no step, timer, signal or child (at "),
        (_spins, "overrun", "more than "),
        (_unfit, "bug", "result of wf: "),
        (_breaks, "bug", "KeyError: 'x' (at "),
        (_callback, "bug", "SystemExit: enough (at "),
    ],
)
def test_why_a_run_waits_for_other_code_and_for_which(
    program: Any, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ductor_stream.engine.planners.loop.WorkflowLoop.run_ready.__kwdefaults__", {"max_callbacks": 500}
    )
    parked = started(program, output_type=int).header.parked
    assert parked is not None
    assert (parked.code, parked.digest) == (code, DIGEST)
    assert parked.message.startswith(message)


def test_input_that_does_not_fit_is_the_callers_fault_and_not_tried_again() -> None:
    async def takes(run: Any, number: int) -> Any:
        return number

    driver = Driver(workflow(takes, takes_input=True, input_type=int))
    driver.start(input=b'"three"')
    failure = driver.header.failure
    assert failure is not None
    assert (failure.code, failure.type, failure.retryable) == ("user", "InvalidInput", False)
    assert failure.message.startswith("input of wf: ")


def test_of_a_deep_stack_both_ends_are_kept() -> None:
    async def falls(run: Any) -> Any:
        def fall(depth: int) -> Any:
            if depth == 100:
                raise ValueError("deep")
            return fall(depth + 1)

        fall(0)

    parked = started(falls).header.parked
    assert parked is not None
    lines = parked.stack.split("\n")
    assert len(lines) == 41
    assert lines[20] == "… 62 more …"
    assert lines[0].endswith(" in falls")
    assert all(line.endswith(" in fall") for line in [*lines[1:20], *lines[21:]])


def test_where_a_run_stands_is_seen_through_generators_too() -> None:
    @types.coroutine
    def awaiting(future: Any) -> Any:
        return (yield from future)

    async def waits(run: Any) -> Any:
        await awaiting(asyncio.get_running_loop().create_future())

    code, message = started(waits).parked
    assert code == "stuck"
    assert message.endswith(" in awaiting)")


def test_code_without_a_file_is_nobodys() -> None:
    assert not is_user_code(compile("1", "<string>", "exec"))


# -- how long it is -----------------------------------------------------------------------


@pytest.mark.parametrize(("most", "goes_on"), [(12, False), (13, True)])
def test_bytes_of_inputs_and_outcomes_count(most: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve: two inputs of [] , an input and a result of a child, and two results of a step."""
    monkeypatch.setattr("ductor_stream.engine.planners.run.CONTINUE_FROM_BYTES", most)

    async def counts(run: Any) -> Any:
        await run.step(ONE)
        await run.child(CHILD, 1)
        await run.step(ONE)
        return not run.should_continue()

    driver = started(counts)
    driver.finish("1", 12)
    driver.hear(ChildFinished(1, "2", "r/1/2", "completed", b"123"))
    driver.finish("3", 12)
    assert driver.result is goes_on


@pytest.mark.parametrize(("said", "continues"), [(CONTINUE_FROM - 1, False), (CONTINUE_FROM, True)])
def test_decisions_count(said: int, continues: bool) -> None:
    async def shows(run: Any) -> Any:
        for _ in range(said):
            run.set_view(None)
        return run.should_continue()

    assert started(shows).result is continues


# -- starts -------------------------------------------------------------------------------


def test_a_start_is_told_with_its_moment_and_its_id() -> None:
    async def program(run: Any) -> Any:
        return await run.step(ONE)

    driver = started(program)
    (event,) = driver.done(EmitLifecycle)
    assert (event.type, event.now, event.about) == ("run.started", 1_000, "s1")


@pytest.mark.parametrize(
    ("on_conflict", "told"),
    [
        ("terminate_existing", [("run.terminated", 5_000, "replaced by start s2", ""), ("run.started", 5_000, "", "s2")]),
        ("reject", [("command.rejected", 5_000, "run_exists", "s2")]),
    ],
)  # fmt: skip
def test_a_start_for_a_run_that_is_under_way_is_told(on_conflict: Any, told: Any) -> None:
    async def program(run: Any) -> Any:
        return await run.step(ONE)

    driver = started(program)
    driver.actions.clear()
    driver.hear(RunStarted("wf", "1", input=b"null", start_id="s2", on_conflict=on_conflict), at=5_000)
    assert [(each.type, each.now, each.reason, each.about) for each in driver.done(EmitLifecycle)] == told


def test_a_start_that_comes_again_is_answered_and_leaves_no_trace() -> None:
    async def program(run: Any) -> Any:
        return await run.step(ONE)

    driver = started(program)
    driver.actions.clear()
    driver.hear(StartRepeated("s1", refused=False), at=2_000)
    assert driver.actions == [], "its end is told when it comes"
    driver.hear(StartRepeated("s2", refused=True), at=2_000)
    refused = EmitLifecycle("start.answered", 1, 1, 2_000, reason="run_exists", about="s2", status="rejected")
    assert driver.actions == [refused]
    driver.finish("1", 12)
    driver.actions.clear()
    before = len(driver.records)
    driver.hear(StartRepeated("s1", refused=False), at=3_000)
    driver.hear(StartRepeated("s2", refused=True), at=3_000)
    ended = EmitLifecycle("start.answered", 1, 2, 3_000, b"12", about="s1", status="completed")
    again = EmitLifecycle("start.answered", 1, 2, 3_000, reason="run_exists", about="s2", status="rejected")
    assert driver.actions == [ended, again]
    assert len(driver.records) == before


def test_a_parent_whose_child_is_another_run_hears_of_it() -> None:
    async def program(run: Any) -> Any:
        return await run.step(ONE)

    driver = started(program)
    stranger = Parent("elsewhere", 1, "3")
    driver.hear(RunStarted("wf", "1", input=b"null", start_id="s2", parent=stranger))
    (answer,) = driver.done(TellParent)
    message = "run r exists already, and is not the child of elsewhere"
    assert answer.event.failure == Failure("child_exists", "ChildExists", message, retryable=False)
