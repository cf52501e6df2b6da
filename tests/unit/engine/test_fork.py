"""Retry and reset: a new execution that keeps what came before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductor_stream.engine import values
from ductor_stream.engine.actions import DispatchAttempt
from ductor_stream.engine.events import CommandReceived, Failure
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.state import state_bytes
from ductor_stream.engine.tick import Stamped, rebuild
from ductor_stream.errors import InvariantViolation
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import STEPS, workflow

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
    from ductor_stream.engine.events import RunStarted

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
    assert owner.last_dispatch().node.node_id == "2"


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
