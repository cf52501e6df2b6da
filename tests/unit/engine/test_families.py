"""Child runs, ContinueAsNew, signals in loops, maps, patches: what one run is to another, and to its next execution."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ductor_stream.declarations import Workflow
from ductor_stream.engine import values
from ductor_stream.engine.actions import CommandChild, DispatchAttempt, StartChild, StopAttempt, TellParent
from ductor_stream.engine.definition import SignalDefinition, WorkflowDefinition
from ductor_stream.engine.events import (
    ChildFinished,
    CommandReceived,
    Failure,
    Parent,
    Redeployed,
    RunStarted,
    SignalReceived,
)
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.state import Record, state_bytes
from ductor_stream.engine.tick import Stamped, due_events, rebuild, replay, wake_at
from ductor_stream.errors import ChildError, StepError
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, Declared, signal, workflow


def _child(**more: Any) -> Workflow[Any, Any]:
    async def other(run: Any, value: Any) -> Any:
        return value

    return Workflow(WorkflowDefinition("other", "7", other, Any, Any, True, "d", **more))


OTHER = _child()


def of(driver: Driver, kind: type[Any]) -> list[Any]:
    """Actions of that kind so far."""
    return [action for action in driver.actions if isinstance(action, kind)]


def proceed(driver: Driver) -> None:
    """What the owner does when the run's wake-up time has come."""
    assert driver.state is not None
    at = wake_at(driver.state)
    assert at is not None
    for event in due_events(driver.state, at):
        driver.apply(Stamped(at, event))


def folded_as_lived(driver: Driver) -> None:
    """The records of the current execution give the state (the numbers that count over executions aside)."""
    assert driver.state is not None
    built = rebuild(driver.run_id, driver.history())
    built.header.lifecycle_seq = driver.state.header.lifecycle_seq
    assert state_bytes(built) == state_bytes(driver.state)


# -- children -------------------------------------------------------------------------------


async def parent(run: Any) -> Any:
    try:
        return await run.child(OTHER, {"a": 1})
    except ChildError as error:
        return [error.status, error.type, error.run_id]


def test_a_child_is_started_and_its_result_awaited() -> None:
    driver = Driver(workflow(parent))
    driver.start()
    [start] = of(driver, StartChild)
    assert (start.node.name, start.node.child.run_id, start.node.child.version) == ("other", "r/1/1", "7")
    assert start.node.input == b'{"a":1}'
    assert (driver.node("1").status, driver.node("1").created_at) == ("waiting", 1_000)
    driver.lose()
    driver.apply(Stamped(2_000, ChildFinished(1, "1", "r/1/1", "completed", b'"x"')))
    assert driver.state is not None
    assert driver.state.header.result == b'"x"'


@pytest.mark.parametrize("status", ["failed", "cancelled", "terminated", "timed_out", "refused"])
def test_a_child_that_ends_otherwise_raises(status: str) -> None:
    driver = Driver(workflow(parent))
    driver.start()
    driver.apply(Stamped(2_000, ChildFinished(1, "1", "r/1/1", status, None, Failure("user", "Oops", "no"))))
    assert driver.state is not None
    assert values.decode(driver.state.header.result or b"", Any) == [status, "Oops", "r/1/1"]


def test_a_child_whose_await_is_cancelled_is_cancelled() -> None:
    async def hurried(run: Any) -> Any:
        try:
            async with asyncio.timeout(5):
                return await run.child(OTHER, 1)
        except TimeoutError:
            return "gave up"

    driver = Driver(workflow(hurried))
    driver.start()
    driver.pass_time()
    assert [command.kind for command in of(driver, CommandChild)] == ["cancel"]
    assert driver.apply(Stamped(9_000, ChildFinished(1, "2", "r/1/2", "completed", b"1"))).records == []


def test_a_detached_child_has_no_parent_and_is_not_awaited() -> None:
    async def fires(run: Any) -> Any:
        return await run.child(OTHER, 1, run_id="mine", detach=True)

    driver = Driver(workflow(fires))
    driver.start()
    assert driver.state is not None
    assert (driver.state.header.result, driver.state.nodes) == (b'"mine"', {})
    assert of(driver, StartChild)[0].node.child.detached
    assert of(driver, CommandChild) == []


async def simple(run: Any) -> Any:
    return await run.step(STEPS["a"], 1)


def _as_child(of_node: Parent | None) -> Driver:
    driver = Driver(workflow(simple))
    driver.apply(Stamped(1_000, RunStarted("wf", "1", b"null", "s", parent=of_node)))
    return driver


def test_every_end_of_a_child_is_told_to_its_parent_once() -> None:
    driver = _as_child(Parent("p", 3, "4.1"))
    driver.finish("1", 5)
    [told] = of(driver, TellParent)
    assert (told.parent.run_id, told.event.execution, told.event.node_id) == ("p", 3, "4.1")
    assert (told.event.status, told.event.result) == ("completed", b"5")
    driver.apply(Stamped(9_000, CommandReceived("terminate", "c")))
    assert len(of(driver, TellParent)) == 1


def test_a_start_with_a_parent_is_always_answered() -> None:
    """Protocol 24: the same parent's redelivered start gets the outcome again, another's is refused."""
    driver = _as_child(Parent("p", 1, "1"))
    again = RunStarted("wf", "1", b"null", "s", parent=Parent("p", 1, "1"))
    assert driver.apply(Stamped(1_001, again)).actions == []
    driver.finish("1", 5)
    [answer] = [a for a in driver.apply(Stamped(1_009, again)).actions if isinstance(a, TellParent)]
    assert answer.event.status == "completed"
    stranger = RunStarted("wf", "1", b"null", "s", parent=Parent("q", 1, "1"))
    [refusal] = [a for a in driver.apply(Stamped(1_010, stranger)).actions if isinstance(a, TellParent)]
    assert (refusal.parent.run_id, refusal.event.status) == ("q", "refused")
    assert refusal.event.failure is not None
    assert refusal.event.failure.code == "child_exists"


@pytest.mark.parametrize("kind", ["cancel", "terminate"])
@pytest.mark.parametrize("theirs", [None, Parent("q", 1, "1"), Parent("p", 2, "1"), Parent("p", 1, "2")])
def test_a_parents_order_is_for_its_child_alone(kind: Any, theirs: Parent | None) -> None:
    """The id may have been a stranger's when the child was to start, or be one's since it ended (protocol 24)."""
    driver = _as_child(theirs)
    order = CommandReceived(kind, "c", parent=Parent("p", 1, "1"))
    done = driver.apply(Stamped(1_001, order))
    assert (done.actions, done.records) == ([], [])
    done = driver.apply(Stamped(1_002, msgspec.structs.replace(order, parent=theirs)))
    assert driver.state is not None
    assert (driver.state.header.status, len(done.records)) == (f"{kind}led" if kind == "cancel" else "terminated", 1)


def test_the_outcome_of_a_run_that_was_never_its_child_is_not_heard() -> None:
    """A run that was purged may have left a child, abandoned; another run has its id now, and the same nodes."""
    driver = Driver(workflow(parent))
    driver.start()
    assert driver.apply(Stamped(2_000, ChildFinished(1, "1", "somebody", "completed", b"1"))).records == []
    driver.apply(Stamped(2_001, ChildFinished(1, "1", "r/1/1", "completed", b"2")))
    assert driver.state is not None
    assert driver.state.header.result == b"2"


# -- ContinueAsNew --------------------------------------------------------------------------

TICKET = signal("ticket")


def _counting(limit: int) -> WorkflowDefinition:
    async def counts(run: Any, seen: list[Any]) -> Any:
        seen.append(await run.wait_signal(TICKET))
        if len(seen) == limit:
            return seen
        run.continue_as_new(seen)

    return WorkflowDefinition("wf", "1", counts, list, Any, True, "d")


def test_signals_move_along_in_order_none_lost_none_twice() -> None:
    """Many signals in one batch, and more while the run continues as new in a loop."""
    driver = Driver(_counting(40))
    driver.apply(Stamped(1_000, RunStarted("wf", "1", b"[]", "s")))
    driver.apply(*(Stamped(1_001, SignalReceived(f"s{n}", "ticket", str(n).encode())) for n in range(25)))
    sent = 25
    while driver.state is not None and not driver.state.closed:
        folded_as_lived(driver)
        if sent < 40:
            driver.send("ticket", sent, f"s{sent}")
            sent += 1
        if driver.state.held:
            proceed(driver)
    assert driver.state is not None
    assert values.decode(driver.state.header.result or b"", Any) == list(range(40))
    assert driver.state.header.execution == 40
    assert driver.state.signals == []


def test_the_next_execution_starts_with_an_empty_history_and_its_own_ids() -> None:
    async def loops(run: Any, round: int) -> Any:
        got = await run.step(STEPS["a"], round)
        if round == 2:
            return [got, run.info.execution]
        run.continue_as_new(round + 1)

    driver = Driver(WorkflowDefinition("wf", "1", loops, int, Any, True, "d"))
    driver.apply(Stamped(1_000, RunStarted("wf", "1", b"1", "s")))
    driver.finish("1", "one")
    assert driver.state is not None
    assert (driver.state.header.execution, driver.state.header.seq) == (2, 1)
    proceed(driver)
    assert [d.execution for d in of(driver, DispatchAttempt)] == [1, 2]
    driver.lose()
    driver.finish("1", "two")
    assert driver.state.header.result == b'["two",2]'
    kinds = [a.type for a in driver.actions if type(a).__name__ == "EmitLifecycle"]
    assert kinds == ["run.started", "run.continued", "run.completed"]


@pytest.mark.parametrize(("items", "result_bytes"), [(10_001, 2), (10, 900_000)], ids=["many", "large"])
def test_a_run_is_told_when_it_should_continue(items: int, result_bytes: int) -> None:
    """By the number of its decisions or by their bytes; a replay hears the same."""

    async def listens(run: Any) -> Any:
        heard = 0
        while not run.should_continue():
            await run.wait_signal(signal("ticket"))
            heard += 1
        return heard

    driver = Driver(workflow(listens))
    driver.start()
    payload = b'"%s"' % (b"x" * result_bytes)
    events = [Stamped(1_001, SignalReceived(f"s{n}", "ticket", payload)) for n in range(items)]
    half = events[: len(events) // 3]
    driver.apply(*half)
    assert driver.status == "running"
    driver.lose()
    driver.apply(*events[len(half) :])
    assert driver.result == (5_000 if result_bytes == 2 else 9)


def test_an_execution_that_went_on_before_bytes_counted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier release told it no; what it did then is no other code's decision. The next execution counts bytes."""

    async def listens(run: Any) -> Any:
        heard = 0
        while not run.should_continue() and heard < 12:
            await run.wait_signal(signal("ticket"))
            heard += 1
        if run.info.execution == 2:
            return heard
        run.continue_as_new()

    driver = Driver(workflow(listens))
    driver.start()
    payload = b'"%s"' % (b"x" * 900_000)
    events = [Stamped(1_001, SignalReceived(f"s{n}", "ticket", payload)) for n in range(22)]
    with monkeypatch.context() as earlier:
        earlier.setattr("ductor_stream.engine.planners.run.CONTINUE_FROM_BYTES", 1 << 62)
        driver.apply(*events[:10])
    driver.lose()
    driver.apply(*events[10:])
    assert (driver.status, driver.header.execution) == ("running", 2)
    driver.pass_time()
    assert driver.result == 9
    kept = [lineage(driver.records, execution) for execution in (1, 2)]
    assert [replay(driver.definitions["wf", "1"], "r", records) for records in kept] == [None, None]


def test_signals_that_wait_do_not_make_an_execution_long() -> None:
    """They move along: a run that continued because of them would take none of them, ever."""

    async def tells(run: Any, heard: Any) -> Any:
        await run.step(STEPS["a"], heard)
        while not run.should_continue():
            await run.wait_signal(signal("ticket"))
            heard += 1
            if heard == 90:
                return run.info.execution
        run.continue_as_new(heard)

    driver = Driver(workflow(tells, takes_input=True, input_type=int))
    driver.start(input=b"0")
    payload = b'"%s"' % (b"x" * 100_000)
    driver.apply(*(Stamped(1_001, SignalReceived(f"s{n}", "ticket", payload)) for n in range(90)))
    driver.finish("1")
    assert driver.header.execution == 2
    driver.pass_time()
    driver.finish("1")
    assert driver.result == 2


def test_what_is_open_when_a_run_continues_is_stopped() -> None:
    async def leaves(run: Any) -> Any:
        task = asyncio.create_task(run.step(STEPS["a"], 1))
        await asyncio.sleep(1)
        del task
        run.continue_as_new()

    driver = Driver(workflow(leaves))
    driver.start()
    driver.pass_time()
    assert [stop.node.name for stop in of(driver, StopAttempt)] == ["a"]
    assert driver.state is not None
    assert driver.state.nodes == {}


@pytest.mark.parametrize("depth", [1, 3])
def test_a_run_continues_from_within_a_task_group(depth: int) -> None:
    """Its tasks end first, as they do for any exception; the order to continue is all that the group holds."""

    async def leaves(run: Any, groups: int = depth) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step(STEPS["a"], groups))
            await asyncio.sleep(1)
            if groups > 1:
                await leaves(run, groups - 1)
            run.continue_as_new("more")

    driver = Driver(workflow(leaves))
    driver.start()
    for _ in range(depth):
        driver.lose()
        driver.pass_time()
    assert (driver.header.execution, driver.header.input, driver.state.nodes) == (2, b'"more"', {})
    assert len(of(driver, StopAttempt)) == depth
    assert replay(driver.definitions["wf", "1"], "r", lineage(driver.records, 1)) is None


def test_an_error_beside_the_order_to_continue_is_told() -> None:
    async def fails(run: Any) -> Any:
        async def cleans() -> None:
            try:
                await run.wait_signal(TICKET)
            finally:
                raise ValueError("no way to clean")

        async with asyncio.TaskGroup() as group:
            group.create_task(cleans())
            await asyncio.sleep(1)
            run.continue_as_new()

    driver = Driver(workflow(fails))
    driver.start()
    driver.pass_time()
    assert driver.parked[0] == "bug"
    assert driver.header.execution == 1


# -- signals, maps, patches, views ------------------------------------------------------------


def test_signals_as_an_iterator() -> None:
    async def reads(run: Any) -> Any:
        found = []
        async for value in run.signals(TICKET):
            found.append(value)
            if len(found) == 3:
                return found

    driver = Driver(workflow(reads))
    driver.start()
    for number in range(3):
        driver.send("ticket", number, f"s{number}")
    assert driver.state is not None
    assert driver.state.header.result == b"[0,1,2]"


def test_a_map_keeps_its_bound_and_its_order() -> None:
    async def maps(run: Any) -> Any:
        return await run.map(STEPS["a"], range(7), max_in_flight=3)

    driver = Driver(workflow(maps))
    driver.start()
    while driver.state is not None and not driver.state.closed:
        open_nodes = list(driver.state.nodes.values())
        assert len(open_nodes) <= 3
        last = open_nodes[-1]
        driver.finish(last.node_id, values.decode(last.input, Any)[0] * 10)
    assert driver.state is not None
    assert driver.state.header.result == b"[0,10,20,30,40,50,60]"


@pytest.mark.parametrize("bound", [0, -1])
@pytest.mark.parametrize("items", [0, 3])
def test_a_map_of_which_nothing_may_be_in_flight_says_so(bound: int, items: int) -> None:
    async def maps(run: Any) -> Any:
        return await run.map(STEPS["a"], range(items), max_in_flight=bound)

    driver = Driver(workflow(maps))
    driver.start()
    code, message = driver.parked
    assert (code, driver.dispatched()) == ("bug", [])
    assert message.startswith(f"ValueError: max_in_flight is {bound}: it has to be 1 or more, or None for all at once")


@pytest.mark.parametrize("policy", ["cancel", "collect"])
def test_a_map_with_a_failing_item(policy: Any) -> None:
    async def maps(run: Any) -> Any:
        try:
            found = await run.map(STEPS["a"], range(4), on_error=policy)
        except StepError as error:
            return error.type
        return [one.type if isinstance(one, StepError) else one for one in found]

    driver = Driver(workflow(maps))
    driver.start()
    driver.finish("2.1", failure=Failure("user", "Oops", "no", retryable=False))
    if policy == "cancel":
        assert len(of(driver, StopAttempt)) == 3
    else:
        for node_id in ("1.1", "3.1", "4.1"):
            driver.finish(node_id, node_id)
    assert driver.state is not None
    assert driver.state.header.result == (b'"Oops"' if policy == "cancel" else b'["1.1","Oops","3.1","4.1"]')


def test_a_change_is_taken_by_new_runs_and_not_by_those_that_went_past_it() -> None:
    async def old(run: Any) -> Any:
        return [await run.step(STEPS["a"], 1), await run.step(STEPS["b"], 2)]

    async def new(run: Any) -> Any:
        first = await run.step(STEPS["c"] if run.patched("use-c") else STEPS["a"], 1)
        return [first, await run.step(STEPS["b"], 2), run.patched("use-c")]

    for before, expected in ((old, b"[1,2,false]"), (new, b"[1,2,true]")):
        driver = Driver(workflow(before))
        driver.start()
        driver.lose()
        driver.definitions = {("wf", "1"): workflow(new, digest="d2")}
        driver.finish("1", 1)
        driver.lose()
        driver.finish("2", 2)
        assert driver.state is not None
        assert driver.state.header.parked is None
        assert driver.state.header.result == expected


def test_a_change_behind_all_that_an_event_decided_is_not_taken_by_runs_that_went_past_it() -> None:
    def version(changed: bool) -> Any:
        async def waits(run: Any) -> Any:
            task = asyncio.create_task(run.step(STEPS["a"], 1))
            await asyncio.sleep(0)
            return [changed and run.patched("late"), await task]

        return workflow(waits)

    driver = Driver(version(changed=False))
    driver.start()
    driver.deploy(version(changed=True))
    driver.finish("1.1", 1)
    assert driver.result == [False, 1]


def test_the_view_is_kept_with_the_run() -> None:
    async def shows(run: Any) -> Any:
        run.set_view({"stage": "one"})
        await run.step(STEPS["a"], 1)
        run.set_view({"stage": "two"})

    driver = Driver(workflow(shows))
    driver.start()
    assert driver.state is not None
    assert driver.state.header.view == b'{"stage":"one"}'
    driver.lose()
    driver.finish("1")
    assert driver.state.header.view == b'{"stage":"two"}'


def test_a_run_whose_workflow_was_unknown_is_pinned_when_it_becomes_known() -> None:
    driver = Driver(workflow(simple))
    driver.definitions = {}
    driver.apply(Stamped(1_000, RunStarted("wf", "", b"null", "s")))
    assert driver.state is not None
    assert (driver.state.header.status, driver.state.header.version) == ("suspended", "")
    driver.definitions = {("wf", "1"): workflow(simple)}
    driver.apply(Stamped(2_000, Redeployed("d1", "1")))
    assert (driver.state.header.status, driver.state.header.version) == ("running", "1")
    assert isinstance(driver.records[0], Record)


def test_a_run_that_awaits_nothing_is_suspended_and_goes_on_with_other_code() -> None:
    """R9: nothing hangs silently, and the event that led there is not lost."""

    async def forgets(run: Any) -> Any:
        await run.step(STEPS["a"], 1)
        await asyncio.Event().wait()

    async def mended(run: Any) -> Any:
        return await run.step(STEPS["a"], 1)

    driver = Driver(workflow(forgets))
    driver.start()
    driver.finish("1", "one")
    assert driver.state is not None
    parked = driver.state.header.parked
    assert parked is not None
    assert parked.code == "stuck"
    assert "test_families.py" in parked.message
    driver.definitions = {("wf", "1"): workflow(mended, digest="d2")}
    driver.apply(Stamped(5_000, Redeployed("d2", "1")))
    assert driver.state.header.result == b'"one"'


def test_a_signal_that_does_not_fit_is_passed_over_and_blocks_nobody() -> None:
    """R11: any producer can send one; the run and the signals behind it must not care."""
    typed = Declared(SignalDefinition("typed", bool))

    async def asks(run: Any) -> Any:
        return [await run.wait_signal(typed), await run.wait_signal(typed)]

    driver = Driver(workflow(asks))
    driver.start()
    told = driver.send("typed", "yes", "s1").lines
    told += driver.send("typed", True, "s2").lines
    assert [line[2]["signal_id"] for line in told] == ["s1"]
    driver.lose()
    driver.send("typed", 7, "s3")
    driver.send("typed", False, "s4")
    assert driver.state is not None
    assert driver.state.header.result == b"[true,false]"
    assert driver.state.signals == []
