"""The client without Kafka: what it sends, and how outcomes become results and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from support import until

from ductor_stream.client import lifecycle_feed
from ductor_stream.client.calls import ClientCalls, SyncClientCalls
from ductor_stream.engine.events import Failure
from ductor_stream.errors import (
    InvalidConfig,
    InvalidValue,
    LogUnavailable,
    OutcomeError,
    PayloadTooLarge,
    RunCancelled,
    RunExists,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    SchemaMismatch,
    StoreUnavailable,
    UsageError,
)
from ductor_stream.outcomes import Outcome, Question, RunDescription

from .client_rigs import MemoryLog, MemoryReader, Order, app, approved, core, fulfil, fulfil_2, sweep

ORDER = Order("order-42", "1.10")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def client(log: MemoryLog) -> Iterator[SyncClientCalls]:
    client = SyncClientCalls()
    client._core = core(log)
    yield client
    client.core.close()


@pytest.fixture
def reader() -> MemoryReader:
    return MemoryReader()


@pytest.fixture
def reading(log: MemoryLog, reader: MemoryReader) -> Iterator[SyncClientCalls]:
    client = SyncClientCalls()
    client._core = core(log, reader)
    yield client
    client.core.close()
    assert reader.closed


# -- what is sent ---------------------------------------------------------------------------


def test_a_start_says_what_was_asked(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(
        fulfil, ORDER, run_id="order-42", start_id="s1", on_conflict="reject", timeout=timedelta(minutes=1),
        context={"traceparent": "00-1"},
    )  # fmt: skip
    assert handle.run_id == "order-42"
    assert (log.sent[0].topic, log.sent[0].key) == ("ductor.shop.run-events", b"order-42")
    assert ("traceparent", b"00-1") in log.sent[0].headers
    assert log.body() == {
        "type": "run.start", "run_id": "order-42", "workflow": "fulfil", "version": "1", "start_id": "s1",
        "input": {"id": "order-42", "total": "1.10"}, "on_conflict": "reject", "run_timeout_ms": 60_000,
    }  # fmt: skip


def test_ids_are_made_where_none_are_given(client: SyncClientCalls, log: MemoryLog) -> None:
    first, second = client.start(sweep), client.start("sweep")
    assert len({first.run_id, second.run_id, log.body(0)["start_id"], log.body(1)["start_id"]}) == 4
    # A Workflow object is its version; a name is the last one declared where it is committed.
    assert (log.body(0)["version"], "version" in log.body(1)) == ("1", False)
    client.start(fulfil_2, ORDER)
    assert log.body()["version"] == "2"


def test_an_input_that_does_not_fit_is_told_before_anything_is_sent(client: SyncClientCalls, log: MemoryLog) -> None:
    with pytest.raises(InvalidValue, match=r"input of fulfil\.id: Expected `str`, got `int`"):
        client.start("fulfil", {"id": 3})
    with pytest.raises(InvalidValue, match="input of sweep"):
        client.start("sweep", 3)
    with pytest.raises(InvalidValue, match="^timeout: |timeout is"):
        client.start(sweep, timeout=-1)
    with pytest.raises(InvalidValue, match="run id"):
        client.start(sweep, run_id="x" * 600)
    with pytest.raises(PayloadTooLarge):
        client.start("unknown", "x" * 1_000_000)
    with pytest.raises(TypeError, match="'run_ids'"):
        client.start(sweep, run_ids="x")  # type: ignore[call-overload]
    assert log.sent == []


def test_without_the_app_values_are_plain_json(log: MemoryLog) -> None:
    bare = SyncClientCalls()
    bare._core = core(log, declared=None)
    bare.start("fulfil", {"id": 3})
    assert log.body()["input"] == {"id": 3}
    bare.handle("order-42").signal("approved", "yes")
    assert log.body()["payload"] == "yes"
    bare.core.close()


def test_signals_and_commands(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.handle("order-42")
    handle.signal(approved, True, signal_id="a7")
    assert log.body() == {
        "type": "run.signal", "run_id": "order-42", "signal_id": "a7", "name": "approved", "payload": True,
    }  # fmt: skip
    with pytest.raises(InvalidValue, match="payload of approved: Expected `bool`"):
        handle.signal("approved", "yes")
    handle.reset("3", command_id="c2")
    assert log.body() == {"type": "run.reset", "run_id": "order-42", "command_id": "c2", "to_node": "3"}
    for kind in ("cancel", "terminate", "pause", "resume", "retry"):
        getattr(handle, kind)("customer asked", command_id="c1")
        assert log.body() == {
            "type": f"run.{kind}", "run_id": "order-42", "command_id": "c1", "reason": "customer asked",
        }  # fmt: skip


def test_a_broker_that_does_not_answer_is_told(client: SyncClientCalls, log: MemoryLog) -> None:
    log.error = LogUnavailable("away")
    with pytest.raises(LogUnavailable, match="away"):
        client.start(sweep)


# -- outcomes, by either way ----------------------------------------------------------------

FAILURE = Failure("user", "CardDeclined", "no money", details=b'{"card":"x"}')


def test_a_result_has_the_workflows_type(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42")
    waiting = client.core.outcome(handle._target)
    log.say("run.started", run_id="another")
    log.say("run.started")
    log.say("run.suspended", reason="bug: oops")
    assert not waiting.done()
    log.say("run.completed", result=b'"r-77"')
    assert handle.result(timeout=5) == "r-77"
    # It was heard once and is known from then on, to a second handle too.
    assert client.start(fulfil, ORDER, run_id="order-42").result(timeout=5) == "r-77"


@pytest.mark.parametrize(
    ("status", "fields", "error", "said", "error_type"),
    [
        ("failed", {"failure": FAILURE}, RunFailed, "CardDeclined: no money", "CardDeclined"),
        ("cancelled", {"reason": "customer asked"}, RunCancelled, "customer asked", ""),
        ("terminated", {}, RunTerminated, "run order-42 was terminated", ""),
        (
            "timed_out",
            {"failure": Failure("timeout_run", "RunTimedOut", "")},
            RunTimedOut,
            "RunTimedOut",
            "RunTimedOut",
        ),
        ("rejected", {}, RunExists, "a run order-42 exists", ""),
    ],
)
def test_how_else_a_run_ends(
    reading: SyncClientCalls, reader: MemoryReader, status: str, fields: Any, error: type[OutcomeError], said: str,
    error_type: str,
) -> None:  # fmt: skip
    reader.rows[Question("order-42")] = Outcome("order-42", 1, status, "fulfil", "1", **fields)
    with pytest.raises(error, match=said) as caught:
        reading.handle("order-42").result(timeout=5)
    assert (caught.value.run_id, caught.value.error_type) == ("order-42", error_type)
    assert caught.value.details == ({"card": "x"} if status == "failed" else None)


def test_a_result_is_typed_by_the_version_that_ran(reading: SyncClientCalls, reader: MemoryReader) -> None:
    reader.rows[Question("order-42")] = Outcome("order-42", 1, "completed", "fulfil", "2", b"2")
    assert reading.handle("order-42").result(timeout=5) == 2
    with pytest.raises(InvalidValue, match="result of order-42: Expected `str`, got `int`"):
        reading.handle("order-42", fulfil).result(timeout=5)


def test_a_wait_that_takes_too_long_tells_what_was_heard_last(
    reading: SyncClientCalls, reader: MemoryReader, client: SyncClientCalls, log: MemoryLog
) -> None:
    handle = reading.start(fulfil, ORDER, run_id="order-42")
    with pytest.raises(TimeoutError, match="did not end within 0.0 s; nothing was heard of it yet"):
        handle.result(timeout=0.0)
    reader.rows[Question("order-42")] = Outcome("order-42", 1, "suspended", reason="bug: oops")
    waiting = reading.core.outcome(handle._target)
    until(lambda: reading.core._feed.latest(Question("order-42")))
    with pytest.raises(TimeoutError, match="it is suspended: bug: oops"):
        handle.result(timeout=0.0)
    waiting.cancel()


@pytest.mark.parametrize("kind", ["database", "log"])
def test_a_run_is_described_as_it_is(reader: MemoryReader, log: MemoryLog, kind: str) -> None:
    client = SyncClientCalls()
    client._core = core(log, reader if kind == "database" else None)
    handle = client.start(fulfil, ORDER, run_id="order-42")
    with pytest.raises(TimeoutError, match=r"nothing is known of run order-42 after 0.0 s: was it started"):
        handle.describe(timeout=0.0)
    for status, reason in (("running", ""), ("suspended", "bug: oops"), ("completed", "")):
        if kind == "database":
            reader.rows[Question("order-42")] = Outcome("order-42", 1, status, "fulfil", "1", reason=reason)
        else:
            log.say("run.started" if status == "running" else f"run.{status}", reason=reason)
        assert handle.describe(timeout=5) == RunDescription("order-42", status, 1, "fulfil", "1", reason)
    client.core.close()


def test_what_a_run_failed_with_is_its_reason(reading: SyncClientCalls, reader: MemoryReader) -> None:
    failure = Failure("step_failed", "Declined", "no funds")
    reader.rows[Question("order-42")] = Outcome("order-42", 2, "failed", "fulfil", "1", failure=failure)
    assert reading.handle("order-42").describe() == RunDescription("order-42", "failed", 2, "fulfil", "1", "no funds")


def test_a_run_from_before_is_described_by_the_database_alone(client: SyncClientCalls) -> None:
    with pytest.raises(InvalidConfig, match="set DUCTOR_DATABASE_URL"):
        client.handle("order-42").describe()


# -- without a database ---------------------------------------------------------------------


def test_an_event_that_comes_again_does_not_hide_how_the_run_has_ended(client: SyncClientCalls, log: MemoryLog) -> None:
    client.core.outcome(client.start(fulfil, ORDER, run_id="order-42")._target)
    log.say("run.started", seq=1)
    log.say("run.completed", seq=2, result=b'"r-77"')
    log.say("run.started", seq=1)  # redriven by another owner (R5)
    assert client.start(fulfil, ORDER, run_id="order-42").result(timeout=5) == "r-77"


def test_a_run_from_before_needs_the_database(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.handle("order-42")
    with pytest.raises(InvalidConfig, match="not started by this client.*set DUCTOR_DATABASE_URL"):
        handle.result(timeout=5)
    assert log.heard is None
    client.core.outcome(client.start(sweep)._target)
    # Once something is heard of it, it can be told.
    log.say("run.started")
    log.say("run.completed", result=b'"r"')
    assert handle.result(timeout=5) == "r"


def test_a_refused_start_is_told_apart_from_other_refusals(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s2", on_conflict="reject")
    waiting = client.core.outcome(handle._target)
    log.say("command.rejected", about="s1", code="run_exists")
    log.say("command.rejected", about="s2", code="run_closed")
    log.say("run.started", about="s0")
    log.say("run.completed", result=b'"other"')
    assert not waiting.done()
    log.say("command.rejected", about="s2", code="run_exists")
    with pytest.raises(RunExists, match="a run order-42 exists"):
        handle.result(timeout=5)


def test_a_start_that_uses_a_run_that_had_ended_hears_how(client: SyncClientCalls, log: MemoryLog) -> None:
    """R9: its end was published before this client was there, and its beginning too."""
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s2")
    waiting = client.core.outcome(handle._target)
    restarted = client.start(fulfil, ORDER, run_id="order-42", start_id="s3", on_conflict="restart_if_closed")
    begun = client.core.outcome(restarted._target)
    log.say("start.answered", execution=3, seq=9, status="completed", result=b'"old"', about="s2")
    assert handle.result(timeout=5) == "old"
    assert waiting.done()
    assert not begun.done(), "it waits for what it begins"
    log.say("run.started", execution=4, seq=10, about="s3")
    log.say("run.completed", execution=4, seq=11, result=b'"new"')
    assert (restarted.result(timeout=5), handle.result(timeout=5)) == ("new", "new")


def test_a_start_that_comes_again_hears_what_became_of_the_first(client: SyncClientCalls, log: MemoryLog) -> None:
    """R9: who sent it died before it heard, and sends it again: the run's end, or the refusal, was published long ago."""

    def start(start_id: str, on_conflict: str) -> tuple[Any, Any]:
        handle = client.start(fulfil, ORDER, run_id="order-42", start_id=start_id, on_conflict=on_conflict)
        return handle, client.core.outcome(handle._target)

    handle, waiting = start("s2", "restart_if_closed")
    refused, told = start("s3", "reject")
    other, still = start("s4", "restart_if_failed")
    log.say("start.answered", execution=3, seq=9, status="completed", result=b'"old"', about="s2")
    assert (handle.result(timeout=5), waiting.done()) == ("old", True)
    assert not told.done()
    log.say("start.answered", execution=3, seq=9, status="rejected", code="run_exists", about="s3")
    with pytest.raises(RunExists, match="a run order-42 exists"):
        refused.result(timeout=5)
    assert not still.done()
    log.say("run.started", execution=4, seq=10, about="s4")
    log.say("run.failed", execution=4, seq=11)
    assert still.done()
    assert handle.result(timeout=5) == "old", "another start's execution is not its own"
    # A retry goes on with the last start; of the run as it is, that is the end.
    log.say("run.started", execution=5, seq=12, reason="retry c1")
    log.say("run.completed", execution=5, seq=13, result=b'"after all"')
    assert (other.result(timeout=5), handle.result(timeout=5)) == ("after all", "old")
    with pytest.raises(RunExists):
        refused.result(timeout=5)


def test_that_a_run_was_contended_says_nothing_of_how_it_stands(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s2")
    waiting = client.core.outcome(handle._target)
    log.say("run.started", about="s2", seq=1)
    log.say("run.paused", seq=2)
    log.say("run.contended", seq=2, status="running", reason="2 input(s) waited")
    log.say("run.completed", seq=3, result=b'"done"')
    log.say("run.contended", seq=3, status="running", reason="told again")
    assert (handle.result(timeout=5), waiting.done()) == ("done", True)


def test_a_restart_waits_for_the_execution_it_began(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s2", on_conflict="restart_if_closed")
    waiting = client.core.outcome(handle._target)
    log.say("run.started", about="s1")
    log.say("run.completed", result=b'"old"')
    assert not waiting.done()
    log.say("run.started", execution=2, about="s2")
    log.say("run.completed", execution=2, result=b'"new"')
    assert handle.result(timeout=5) == "new"
    for execution in range(3, 9):
        log.say("run.started", execution=execution, about=f"s{execution}")
    assert client.core._feed.latest(Question("order-42", "s2")) is None


def test_a_run_that_goes_on_as_new_is_awaited_to_its_end(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s1", on_conflict="reject")
    waiting = client.core.outcome(handle._target)
    log.say("run.started", about="s1")
    log.say("run.continued")
    log.say("run.suspended", execution=2)
    log.say("run.failed", execution=2)
    assert waiting.result(5).execution == 2
    # A retry goes on with the same start.
    log.say("run.started", execution=3, reason="retry c1")
    log.say("run.completed", execution=3, result=b'"third time"')
    assert handle.result(timeout=5) == "third time"


def test_two_starts_of_one_run_are_answered_each(client: SyncClientCalls, log: MemoryLog) -> None:
    first = client.start(fulfil, ORDER, run_id="order-42", start_id="s1", on_conflict="terminate_existing")
    second = client.start(fulfil, ORDER, run_id="order-42", start_id="s2", on_conflict="terminate_existing")
    waiting = [client.core.outcome(handle._target) for handle in (first, second)]
    log.say("run.started", about="s1")
    log.say("run.terminated", reason="replaced by start s2")
    log.say("run.started", execution=2, about="s2")
    log.say("run.completed", execution=2, result=b'"new"')
    assert [future.result(5).status for future in waiting] == ["terminated", "completed"]


def test_a_start_that_is_named_late_is_answered_by_what_it_went_on_as(client: SyncClientCalls, log: MemoryLog) -> None:
    """R5: the event that names it was not taken at once, and is redriven when its run has gone on as new and ended."""
    first = client.core.outcome(client.start(fulfil, ORDER, run_id="order-42", start_id="s1")._target)
    again = client.start(fulfil, ORDER, run_id="order-42", start_id="s2", on_conflict="restart_if_closed")
    second = client.core.outcome(again._target)
    log.say("run.started", about="s1", seq=1)
    log.say("run.cancelled", seq=2)
    log.say("run.continued", execution=2, seq=4)
    log.say("run.failed", execution=3, seq=5)
    assert not second.done()
    log.say("run.started", execution=2, about="s2", seq=3)
    assert (first.result(5).execution, second.result(5).execution, second.result(5).status) == (1, 3, "failed")


def test_a_run_that_has_gone_on_many_times_still_knows_its_start(client: SyncClientCalls, log: MemoryLog) -> None:
    handle = client.start(fulfil, ORDER, run_id="order-42", start_id="s1", on_conflict="reject")
    waiting = client.core.outcome(handle._target)
    log.say("run.started", about="s1")
    for execution in range(1, 9):
        log.say("run.continued", execution=execution)
    log.say("run.completed", execution=9, result=b'"done"')
    assert waiting.result(5).execution == 9


def test_a_run_that_is_waited_for_is_not_forgotten(
    client: SyncClientCalls, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle_feed, "REMEMBERED", 5)
    ids = [f"waited-{n}" for n in range(20)]
    waiting = [client.core.outcome(client.start(fulfil, ORDER, run_id=run_id)._target) for run_id in ids]
    for n in range(100):
        client.start(fulfil, ORDER, run_id=f"other-{n}")
    for run_id in ids:
        log.say("run.completed", run_id, result=b'"r"')
    assert {future.result(5).status for future in waiting} == {"completed"}
    for n in range(100, 105):
        client.start(fulfil, ORDER, run_id=f"other-{n}")
    with pytest.raises(InvalidConfig):
        client.handle("waited-0").result(timeout=5)


# -- with a database ------------------------------------------------------------------------


def test_many_waiters_are_one_question_and_an_outage_is_waited_for(
    reading: SyncClientCalls, reader: MemoryReader
) -> None:
    reader.error = StoreUnavailable("away")
    waiting = [reading.core.outcome(reading.handle(f"run-{n}")._target) for n in range(20)]
    until(lambda: len(reader.asked) > 2)
    for n in range(20):
        reader.rows[Question(f"run-{n}")] = Outcome(f"run-{n}", 1, "completed", result=b"1")
    reader.error = None
    assert {future.result(5).status for future in waiting} == {"completed"}
    assert max(len(questions) for questions in reader.asked) == 20


def test_what_no_waiting_mends_is_told(reading: SyncClientCalls, reader: MemoryReader) -> None:
    for error in (SchemaMismatch("too old"), ZeroDivisionError("ours")):
        reader.error = error
        with pytest.raises(type(error), match=str(error)):
            reading.handle("order-42").result(timeout=5)
    reader.error = None
    reader.rows[Question("order-42")] = Outcome("order-42", 1, "completed", result=b"1")
    assert reading.handle("order-42").result(timeout=5) == 1


def test_whoever_gives_up_is_not_asked_for_any_more(reading: SyncClientCalls, reader: MemoryReader) -> None:
    with pytest.raises(TimeoutError):
        reading.handle("given-up").result(timeout=0.0)
    reader.rows[Question("order-42")] = Outcome("order-42", 1, "completed", result=b"1")
    assert reading.handle("order-42").result(timeout=5) == 1
    assert reader.asked[-1] == [Question("order-42")]


def test_what_is_not_waited_for_any_more_is_forgotten(reading: SyncClientCalls, reader: MemoryReader) -> None:
    """However long somebody else waits."""
    reader.rows[Question("long")] = Outcome("long", 1, "running")
    waiting = reading.core.outcome(reading.handle("long")._target)
    for n in range(20):
        reader.rows[Question(f"run-{n}")] = Outcome(f"run-{n}", 1, "completed", result=b"1")
        assert reading.handle(f"run-{n}").result(timeout=5) == 1
    feed = reading.core._feed
    until(lambda: not any(feed.latest(Question(f"run-{n}")) for n in range(20)))
    latest = feed.latest(Question("long"))
    assert latest is not None
    assert latest.status == "running"
    waiting.cancel()


# -- closing, asyncio -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lifecycle", "database"])
def test_closing_ends_every_wait(log: MemoryLog, kind: str) -> None:
    client = SyncClientCalls()
    client._core = core(log, MemoryReader() if kind == "database" else None)
    target = client.start(sweep)._target
    waiting = [client.core.outcome(target), client.core.known(target)]
    client.core.close()
    for future in waiting:
        with pytest.raises(UsageError, match="closed before the answer came"):
            future.result(5)
    with pytest.raises(UsageError, match="the client is closed"):
        client.core.outcome(client.start(sweep)._target)
    assert log.closed_with is not None


def test_a_client_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(UsageError, match="the client is not open: use `with SyncClientCalls"):
        SyncClientCalls().start(sweep)


def test_the_same_with_asyncio(log: MemoryLog) -> None:
    async def scene() -> None:
        client = ClientCalls()
        client._core = core(log)
        handle = await client.start(fulfil, ORDER, run_id="order-42")
        await handle.signal(approved, True)
        await handle.pause()
        await handle.resume()
        await handle.cancel("customer asked")
        await handle.terminate()
        await handle.retry()
        await handle.reset("3")
        kinds = [log.body(n)["type"] for n in range(len(log.sent))]
        asked = ["start", "signal", "pause", "resume", "cancel", "terminate", "retry", "reset"]
        assert kinds == [f"run.{kind}" for kind in asked]
        with pytest.raises(TimeoutError, match="nothing was heard of it yet"):
            await handle.result(timeout=0.0)
        results = asyncio.gather(handle.result(), client.handle("order-42", fulfil).result(timeout=60))
        await asyncio.sleep(0)
        log.say("run.completed", result=b'"r-77"')
        assert list(await results) == ["r-77", "r-77"]
        assert (await handle.describe()).status == "completed"
        with pytest.raises(TimeoutError, match="nothing is known of run order-43"):
            await (await client.start(fulfil, ORDER, run_id="order-43")).describe(timeout=0.0)
        client.core.close()

    asyncio.run(scene())


def test_the_rig_is_an_app() -> None:
    assert set(app.workflows) == {("fulfil", "1"), ("fulfil", "2"), ("sweep", "1")}
