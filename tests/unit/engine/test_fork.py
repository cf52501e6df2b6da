"""Retry and reset: a new execution that keeps what came before."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest

from ductor_stream.engine import values
from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle, StartChild
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptLost,
    ChildFinished,
    CommandReceived,
    Condemned,
    Continuation,
    Continued,
    ContinuedInPlace,
    Failure,
    Proceed,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
)
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.ids import MAX_RUN_ID_BYTES
from ductor_stream.engine.state import SignalArrived, state_bytes
from ductor_stream.engine.tick import Stamped, rebuild
from ductor_stream.errors import InvariantViolation
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import CHILD, SIGNALS, STEPS, workflow

NO = Failure("user", "Oops", "no", retryable=False)


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Any:
    with abandoning():
        yield


async def three(run: Any) -> Any:
    drawn = run.random.randint(0, 10**9)
    first = await run.step(STEPS["a"], drawn)
    second = await run.step(STEPS["b"], first)
    return [drawn, first, second, await run.step(STEPS["c"], second)]


class Owner(Driver):
    """A driver whose history is all records, as an owner loads them for a retry or reset."""

    def history(self) -> list[Any]:
        return list(self.records)

    def command(self, kind: Any, to_node: str | None = None, id: str = "c1") -> Any:
        self.lose()
        assert self.state is not None
        now = self.state.header.now + 100
        return self.apply(Stamped(now, CommandReceived(kind, id, "again", to_node)))

    def last_dispatch(self) -> Any:
        return [a for a in self.actions if isinstance(a, DispatchAttempt)][-1]

    def folded_as_lived(self) -> None:
        assert self.state is not None
        built = rebuild("r", lineage(self.records, self.state.header.execution))
        built.header.lifecycle_seq = self.state.header.lifecycle_seq
        assert state_bytes(built) == state_bytes(self.state)


def failed() -> Owner:
    owner = Owner(workflow(three))
    owner.start()
    owner.finish("1", "one")
    owner.finish("2", failure=NO)
    assert owner.state is not None
    assert owner.state.header.status == "failed"
    return owner


def test_what_keeps_folded_history_is_told_and_not_guessed() -> None:
    owner = failed()
    owner.command("retry")
    for folded in (owner.records[1:], [record for record in owner.records if record.execution == 2]):
        with pytest.raises(InvariantViolation, match="which is not there"):
            lineage(folded, 2)


def test_a_failed_run_goes_on_from_its_failed_node() -> None:
    owner = failed()
    owner.command("retry")
    assert owner.state is not None
    dispatch = owner.last_dispatch()
    assert (dispatch.execution, dispatch.node.node_id, dispatch.node.generation) == (2, "2", 2)
    assert dispatch.node.key_execution == 1
    owner.folded_as_lived()
    owner.finish("2", "two")
    owner.lose()
    owner.finish("3", "three")
    assert owner.state.header.status == "completed"
    result = values.decode(owner.state.header.result or b"", Any)
    assert result[1:] == ["one", "two", "three"]
    started = next(a for a in owner.actions if isinstance(a, DispatchAttempt))
    assert result[0] == values.decode(started.node.input, Any)[0]


def test_a_retry_can_fail_and_be_retried() -> None:
    owner = failed()
    owner.command("retry")
    owner.finish("2", "two")
    owner.finish("3", failure=NO)
    owner.command("retry", id="c2")
    assert owner.state is not None
    assert owner.state.header.execution == 3
    assert (owner.last_dispatch().node.node_id, owner.last_dispatch().node.key_execution) == ("3", 2)
    owner.folded_as_lived()
    owner.finish("3", 3)
    assert owner.state.header.status == "completed"
    seqs = [a.seq for a in owner.actions if type(a).__name__ == "EmitLifecycle"]
    assert seqs == list(range(1, len(seqs) + 1))


def test_results_of_the_old_execution_are_late() -> None:
    owner = failed()
    owner.command("retry")
    assert owner.state is not None
    late = owner.applied[1]
    assert owner.apply(late).records == []


@pytest.mark.parametrize("status", ["running", "completed", "cancelled", "terminated"])
def test_a_run_that_did_not_fail_is_not_retried(status: str) -> None:
    owner = Owner(workflow(three))
    owner.start()
    if status == "completed":
        for node in "123":
            owner.finish(node, node)
    elif status == "cancelled":
        owner.command("cancel", id="c0")
    elif status == "terminated":
        owner.command("terminate", id="c0")
    assert owner.state is not None
    assert owner.state.header.status == status
    done = owner.command("retry")
    assert [(a.type, a.reason) for a in done.actions] == [("command.rejected", "run_not_failed")]
    assert owner.state.header.execution == 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_reset_goes_back_to_a_node_and_does_it_again(closed: bool) -> None:
    owner = Owner(workflow(three))
    owner.start()
    owner.finish("1", "one")
    owner.finish("2", "two")
    if closed:
        owner.finish("3", "three")
    owner.command("reset", "2")
    assert owner.state is not None
    dispatch = owner.last_dispatch()
    assert (dispatch.execution, dispatch.node.node_id, dispatch.node.key_execution) == (2, "2", 0)
    owner.folded_as_lived()
    owner.finish("2", "TWO")
    owner.finish("3", "THREE")
    assert values.decode(owner.state.header.result or b"", Any)[1:] == ["one", "TWO", "THREE"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_reset_to_a_transition_goes_on_from_what_it_had_left_open(closed: bool) -> None:
    """Two steps at once, of which one was done: that is kept, the other one begins again."""

    async def both(run: Any) -> Any:
        return await asyncio.gather(run.step(STEPS["a"], 1), run.step(STEPS["b"], 2))

    driver = Driver(workflow(both))
    driver.start()
    first, second = driver.dispatched()
    driver.finish(first, "kept")
    seq = driver.records[-1].seq
    if closed:
        driver.finish(second, "again")
        assert driver.status == "completed"
    driver.order("reset", to_transition=seq)
    assert (driver.status, driver.header.execution) == ("running", 2)
    assert driver.dispatched() == [first, second, second]
    assert (driver.node(second).generation, driver.node(second).key_execution) == (2, 0)
    driver.lose()
    driver.finish(second, "anew")
    assert driver.result == ["kept", "anew"]


def test_a_reset_to_the_first_transition_begins_with_the_same_input_again() -> None:
    async def echo(run: Any, value: Any) -> Any:
        return [value, await run.step(STEPS["a"], value), await run.wait_signal(SIGNALS["x"])]

    driver = Driver(workflow(echo, takes_input=True, input_type=int))
    driver.start(input=b"7")
    driver.finish("1", "once")
    driver.send("x", "heard")
    driver.order("reset", to_transition=1)
    driver.finish("1", "twice")
    assert driver.result == [7, "twice", "heard"], "what came later is told again"


@pytest.mark.parametrize("seq", [3, 4, 99])
def test_a_reset_to_the_end_of_a_run_or_beyond_is_refused(seq: int) -> None:
    async def one(run: Any) -> Any:
        return await run.step(STEPS["a"], 1)

    driver = Driver(workflow(one))
    driver.start()
    if seq < 99:
        driver.finish("1", "done")
        driver.order("pause")
        seq -= 1
    driver.order("reset", to_transition=seq)
    assert [(a.type, a.reason) for a in driver.done(EmitLifecycle)][-1] == ("command.rejected", "transition_not_found")
    assert driver.header.execution == 1


def test_a_reset_to_a_node_that_never_was_is_refused() -> None:
    owner = failed()
    done = owner.command("reset", "99")
    assert [(a.type, a.reason) for a in done.actions] == [("command.rejected", "node_not_found")]


async def hasty(run: Any) -> Any:
    await run.step(STEPS["a"], 1)
    try:
        async with asyncio.timeout(0):
            await run.step(STEPS["b"], 2)
    except TimeoutError:
        return "late"


def test_a_reset_to_a_node_that_the_last_event_made_and_dropped_is_refused() -> None:
    owner = Owner(workflow(hasty))
    owner.start()
    owner.finish("1", "one")
    assert owner.state is not None
    assert owner.state.header.status == "completed"
    done = owner.command("reset", "2")
    # Nothing would be open in an execution that begins there: it would wait for ever.
    assert [(a.type, a.reason) for a in done.actions] == [("command.rejected", "node_not_found")]


def test_signals_that_came_after_the_fork_are_told_again() -> None:
    from unit.engine.programs import SIGNALS

    async def waits(run: Any) -> Any:
        first = await run.step(STEPS["a"], 1)
        return [first, await run.wait_signal(SIGNALS["x"]), await run.wait_signal(SIGNALS["x"])]

    owner = Owner(workflow(waits))
    owner.start()
    owner.send("x", "early", "s1")
    owner.finish("1", "one")
    owner.send("x", "late", "s2")
    owner.command("reset", "1")
    assert owner.state is not None
    owner.folded_as_lived()
    owner.finish("1", "ONE")
    assert values.decode(owner.state.header.result or b"", Any) == ["ONE", "early", "late"]
    assert owner.state.signals == []


def test_only_what_failed_runs_again_in_a_fan_out() -> None:
    async def fans(run: Any) -> Any:
        return await asyncio.gather(*(run.step(STEPS["a"], n) for n in range(3)))

    owner = Owner(workflow(fans))
    owner.start()
    owner.finish("1.1", "one")
    owner.finish("3.1", "three")
    owner.finish("2.1", failure=NO)
    before = len(owner.actions)
    owner.command("retry")
    again = [a.node.node_id for a in owner.actions[before:] if isinstance(a, DispatchAttempt)]
    assert again == ["2.1"]
    owner.finish("2.1", "two")
    assert owner.state is not None
    assert owner.state.header.result == b'["one","two","three"]'


def test_a_timed_out_run_that_is_retried_has_its_whole_time_again() -> None:
    owner = Owner(workflow(three))
    owner.apply(Stamped(1_000, RunStarted("wf", "1", b"null", "s1", run_timeout_ms=5_000)))
    owner.finish("1", "one")
    owner.pass_time()
    assert owner.state is not None
    assert owner.state.header.status == "timed_out"
    owner.command("retry")
    assert owner.state.header.run_due_at == owner.state.header.now + 5_000
    for round in ("c2", "c3"):
        owner.pass_time()
        assert owner.status == "timed_out"
        owner.command("retry", id=round)
        # Not what has gone by since the first start, and more so each time: the whole of its own timeout.
        assert owner.state.header.run_due_at == owner.state.header.now + 5_000
    owner.folded_as_lived()
    assert (owner.node("2").status, owner.node("2").generation) == ("dispatched", 4)


@pytest.mark.parametrize("signals", [0, 50], ids=["whole", "in place"])
def test_a_run_that_had_continued_as_new_has_its_whole_time_again(signals: int) -> None:
    """Not what was left of it when it continued, which may be nothing at all: it would be timed out at once, for ever."""

    async def twice(run: Any, turn: int) -> Any:
        await run.step(STEPS["a"], turn)
        if turn < 3:
            run.continue_as_new(turn + 1)

    owner = Owner(workflow(twice, takes_input=True, input_type=int))
    owner.apply(Stamped(1_000, RunStarted("wf", "1", b"1", "s1", run_timeout_ms=5_000)))
    for number in range(signals):
        owner.hear(SignalReceived(f"g{number}", "unread", b'"' + 500 * b"x" + b'"'), at=1_000)
    for turn in (1, 2):
        owner.hear(AttemptFinished(turn, "1", 1, "completed", b"1"), at=2_000 * turn)
        owner.hear(Proceed(turn + 1))
    begun = [type(record.event) for record in owner.records if isinstance(record.event, Continuation)]
    assert begun == [Continued, ContinuedInPlace if signals else Continued]
    assert owner.header.run_due_at == 6_000
    for round in ("c1", "c2"):
        owner.pass_time()
        assert owner.status == "timed_out"
        owner.command("retry", id=round)
        assert owner.header.run_due_at == owner.header.now + 5_000
        owner.folded_as_lived()


@pytest.mark.parametrize("standing", ["pause", "suspended"])
def test_what_failed_while_the_run_stood_still_is_tried_again(standing: str) -> None:
    """The event that closed the run was its going on: kept was that the step had failed, and it was told once more."""

    async def both(run: Any) -> Any:
        return await asyncio.gather(
            run.step(STEPS["a"], 1), run.step(STEPS["b"], 2), run.child(CHILD, 1, run_id="invoice")
        )

    owner = Owner(workflow(both))
    owner.start()
    if standing == "pause":
        owner.command("pause", id="p")
    else:
        definitions, owner.definitions = owner.definitions, {}
        owner.lose()
        owner.hear(SignalReceived("s", "unread", b"1"))
        assert owner.status == "suspended"
    owner.finish("1.1", failure=NO)
    owner.finish("2.1", "two")
    owner.hear(ChildFinished(1, "3.1", "invoice", "failed", None, NO))
    assert owner.state.nodes == {}
    if standing == "pause":
        owner.command("resume", id="q")
    else:
        owner.definitions = definitions
        owner.lose()
        owner.hear(Redeployed("other", "1"))
    assert owner.status == "failed"
    owner.command("retry")
    assert owner.status == "running"
    assert {node.node_id: node.generation for node in owner.state.nodes.values()} == {"1.1": 2, "3.1": 1}
    assert owner.node("1.1").key_execution == 1
    assert owner.done(StartChild)[-1].node.child.run_id == "invoice"
    owner.folded_as_lived()
    owner.finish("1.1", "one")
    owner.hear(ChildFinished(2, "3.1", "invoice", "completed", b'"three"'))
    assert owner.result == ["one", "two", "three"]


def test_a_reset_tells_once_more_what_had_failed_before_it() -> None:
    owner = Owner(workflow(three))
    owner.start()
    owner.command("pause", id="p")
    owner.finish("1", failure=NO)
    owner.apply(Stamped(owner.header.now + 1, CommandReceived("reset", "c1", "", None, owner.header.seq)))
    assert owner.status == "failed"


def test_a_retry_and_a_restart_in_one_batch_are_as_one_after_the_other() -> None:
    """Protocol 16: the restart's own code must not be fed the history that the retry kept."""
    from ductor_stream.engine.events import RunStarted

    together, apart = failed(), failed()
    at = 5_000
    retry = Stamped(at, CommandReceived("retry", "c1"))
    restart = Stamped(at, RunStarted("wf", "1", b"null", "s2", "terminate_existing"))
    together.lose()
    together.apply(retry, restart)
    apart.lose()
    apart.apply(retry)
    apart.apply(restart)
    assert together.state is not None
    assert apart.state is not None
    assert together.state.header.status == "running"
    assert state_bytes(together.state) == state_bytes(apart.state)


@pytest.mark.parametrize("end", ["terminate", "condemned", "timed out"])
def test_what_was_refused_after_an_end_from_outside_is_not_told_again(end: str) -> None:
    owner = Owner(workflow(three))
    owner.start(run_timeout_ms=5_000)
    owner.send("x", "in time", "s1")
    if end == "terminate":
        owner.order("terminate")
    else:
        owner.hear(Condemned("poisoned", "no") if end == "condemned" else RunTimedOut(1), at=6_000)
    assert owner.state.closed
    owner.send("x", "too late", "s2")
    owner.command("reset", "1")
    assert owner.state.signals == [SignalArrived("s1", "x", b'"in time"')]
    assert owner.node("1").status == "dispatched"


def test_a_node_that_is_tried_again_has_all_its_tries_and_no_past() -> None:
    owner = Owner(workflow(three))
    owner.start()
    rejected = AttemptFinished(1, "1", 1, "rejected", None, NO)
    for happens in (rejected, AttemptLost(1, "1", 1)):
        owner.hear(happens)
    while owner.state.header.status == "running":
        owner.pass_time() if owner.node("1").status != "dispatched" else owner.fail("1")
    before, at = owner.done(DispatchAttempt)[-1].node, owner.header.now + 100
    assert before.attempt == 3
    owner.command("retry")
    again = msgspec.structs.replace(
        owner.done(DispatchAttempt)[0].node,
        generation=before.generation + 1,
        created_at=at,
        dispatched_at=at,
        key_execution=1,
        last_failure=before.last_failure,
    )
    assert owner.node("1") == again


def test_a_child_is_started_again_under_another_id() -> None:
    async def asks(run: Any) -> Any:
        await run.child(CHILD, 1, parent_close="abandon")

    owner = Owner(workflow(asks))
    owner.start()
    owner.command("reset", "1")
    first, second = (start.node.child for start in owner.done(StartChild))
    assert second == msgspec.structs.replace(first, run_id="r/1/1/~2")


@pytest.mark.parametrize(
    ("kind", "to_node", "refusal"),
    [("retry", None, "nothing_to_retry"), ("reset", "1", "node_not_found"), ("reset", None, "node_not_found")],
)
def test_of_a_run_that_failed_at_its_start_nothing_can_be_done_again(kind: Any, to_node: Any, refusal: str) -> None:
    owner = Owner(workflow(three, takes_input=True, input_type=int))
    owner.start()
    assert owner.status == "failed"
    done = owner.command(kind, to_node)
    assert [(a.type, a.reason, a.about) for a in done.actions] == [("command.rejected", refusal, "c1")]


@pytest.mark.parametrize(("reason", "told"), [("again", "retry c1: again"), ("", "retry c1")])
def test_who_asked_for_the_new_execution_is_told(reason: str, told: str) -> None:
    owner = failed()
    done = owner.hear(CommandReceived("retry", "c1", reason), at=9_000)
    (event,) = (each for each in done.actions if isinstance(each, EmitLifecycle))
    assert (event.type, event.now, event.reason) == ("run.started", 9_000, told)


@pytest.mark.parametrize(("length", "fits"), [(MAX_RUN_ID_BYTES - 3, True), (MAX_RUN_ID_BYTES - 2, False)])
def test_an_id_that_would_be_too_long_for_a_key_is_told_by_its_digest(length: int, fits: bool) -> None:
    run_id = "c" * length

    async def asks(run: Any) -> Any:
        await run.child(CHILD, 1, run_id=run_id, parent_close="abandon")

    owner = Owner(workflow(asks))
    owner.start()
    owner.command("reset", "1")
    again = owner.done(StartChild)[-1].node.child.run_id
    assert again == (f"{run_id}/~2" if fits else f"{hashlib.sha256(run_id.encode()).hexdigest()}/~2")
