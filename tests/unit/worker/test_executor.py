"""Each way in which an attempt can end, and that none of them costs the worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from support import until
from worker_rigs import Reported, bench, task_of

from ductor_stream import App, RetryableError, TerminalError, Use, current_attempt
from ductor_stream.errors import CalledOutsideStep


@dataclass
class Order:
    id: str
    total: float


class CardDeclined(Exception):
    pass


def _result(delivery: Reported) -> dict[str, Any]:
    until(lambda: delivery.result, what="the report of an attempt")
    assert delivery.result is not None
    return delivery.result


def test_a_plain_and_an_async_step_complete_and_echo_their_fence() -> None:
    app = App("t")

    @app.step
    def plain(order: Order) -> str:
        return f"{order.id}!"

    @app.step
    async def coro(a: int, b: int = 5) -> int:
        await asyncio.sleep(0)
        return a + b

    with bench(app) as b:
        one = _result(b.run("plain", {"id": "o1", "total": 2.5}, run_id="käse/1", node_id="7", generation=3))
        two = _result(b.run("coro", 4, node_id="8"))
    assert (one["outcome"], one["output"]) == ("completed", "o1!")
    assert (one["run_id"], one["execution"], one["node_id"], one["generation"]) == ("käse/1", 1, "7", 3)
    assert one["worker"] == "bench"
    assert datetime.fromisoformat(one["started_at"]) <= datetime.fromisoformat(one["finished_at"])
    assert two["output"] == 9
    assert b.slots.free == b.slots.total


def test_a_step_sees_its_attempt_wherever_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    app = App("t")
    seen: dict[str, Any] = {}

    def look(where: str) -> None:
        attempt = current_attempt()
        seen[where] = (attempt.run_id, attempt.execution, attempt.node_id, attempt.generation, attempt.attempt)

    @app.step
    def plain() -> None:
        look("thread")
        attempt = current_attempt()
        seen["key"], seen["details"], seen["deadline"] = attempt.idempotency_key, attempt.last_details, attempt.deadline
        attempt.log.info("seen")

    @app.step
    async def coro() -> None:
        look("loop")
        await asyncio.to_thread(look, "to_thread")

    with bench(app) as b, caplog.at_level("INFO"):
        _result(b.run("plain", attempt=4, generation=6, heartbeat_details={"page": 17}, deadline_at="2030-01-01T00:00:00Z"))  # fmt: skip
        _result(b.run("coro", attempt=4, generation=6, node_id="2"))
    assert seen["thread"] == ("run-1", 1, "1", 6, 4)
    assert seen["loop"] == seen["to_thread"] == ("run-1", 1, "2", 6, 4)
    assert seen["key"] == "t/run-1/1/1"
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("seen")]
    assert {"run_id=run-1", "node_id=1", "generation=6", "attempt=4"} <= set(line.split())
    assert seen["details"] == {"page": 17}
    assert seen["deadline"] < datetime.fromisoformat("2030-01-01T00:00:00Z")
    with pytest.raises(CalledOutsideStep):
        current_attempt()


def test_what_a_step_raises_is_a_failed_attempt_by_its_rules() -> None:
    app = App("t")
    errors: dict[str, Callable[[], BaseException]] = {
        "terminal": lambda: TerminalError("no", type="CardDeclined", details={"code": 51}),
        "retryable": lambda: RetryableError("later", retry_after=1.5),
        "user": lambda: CardDeclined("declined"),
        "exit": lambda: SystemExit(3),
        "interrupt": lambda: KeyboardInterrupt(),
        "group": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
        "cancelled": lambda: asyncio.CancelledError("by itself"),
        "surrogate": lambda: ValueError("half \ud800 and \0"),
    }

    @app.step
    def plain(which: str) -> None:
        raise errors[which]()

    @app.step
    async def coro(which: str) -> None:
        raise errors[which]()

    with bench(app) as b:
        for step in ("plain", "coro"):
            found = {
                which: _result(b.run(step, which, node_id=f"{step}-{which}"))["error"] | {"outcome": None}
                for which in errors
            }
            assert all(error["code"] == "user" for error in found.values())
            assert found["terminal"]["type"] == "CardDeclined"
            assert found["terminal"]["retryable"] is False
            assert found["terminal"]["details"] == {"code": 51}
            assert found["retryable"]["retry_after_ms"] == 1500
            assert found["user"].get("retryable", True) is True
            assert found["user"]["type"] == "CardDeclined"
            assert found["user"]["message"] == "declined"
            assert "raise errors[which]()" in found["user"]["stack"]
            assert "ductor_stream/worker" not in found["user"]["stack"]
            assert found["exit"]["type"] == "SystemExit"
            assert found["interrupt"]["type"] == "KeyboardInterrupt"
            assert found["group"]["type"] == "ExceptionGroup"
            assert found["cancelled"]["type"] == "CancelledError"
            assert "\0" not in found["surrogate"]["message"]
        assert b.slots.free == b.slots.total


def test_details_that_cannot_be_sent_do_not_cost_the_failure() -> None:
    app = App("t")

    @app.step
    def plain() -> None:
        raise TerminalError("no", details=object())

    with bench(app) as b:
        error = _result(b.run("plain"))["error"]
    assert "details" not in error
    assert "left out" in error["message"]
    assert error["retryable"] is False


def test_an_exception_that_cannot_be_written_is_still_a_failure() -> None:
    app = App("t")

    class Awkward(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    @app.step
    def plain() -> None:
        raise Awkward

    with bench(app) as b:
        assert _result(b.run("plain"))["error"]["type"] == "Awkward"


def test_system_exit_in_a_task_of_a_step_does_not_end_the_loop() -> None:
    app = App("t")

    async def leave() -> None:
        raise SystemExit(1)

    @app.step
    async def coro() -> str:
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        return "left" if isinstance(task.exception(), SystemExit) else "?"

    with bench(app) as b:
        assert _result(b.run("coro"))["output"] == "left"
        assert _result(b.run("coro", node_id="2"))["output"] == "left"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (object(), "output_not_encodable"),
        ({1, "a", b"x"} and float("nan"), "output_not_encodable"),
        ("x" * 900_001, "output_too_large"),
    ],
)
def test_a_value_that_cannot_be_sent_fails_the_attempt_and_is_not_tried_again(value: object, code: str) -> None:
    app = App("t")

    @app.step
    def plain() -> Any:
        return value

    with bench(app) as b:
        report = _result(b.run("plain"))
    assert report["outcome"] == "failed"
    assert report["error"]["code"] == code
    assert report["error"]["retryable"] is False
    assert "result of plain" in report["error"]["message"]


def test_a_value_nested_too_deeply_or_of_another_type_is_not_encodable() -> None:
    app = App("t")

    @app.step
    def deep() -> Any:
        nested: Any = []
        for _ in range(300):
            nested = [nested]
        return nested

    @app.step
    def liar() -> int:
        return "seven"  # type: ignore[return-value]

    with bench(app) as b:
        assert _result(b.run("deep"))["error"]["code"] == "output_not_encodable"
        assert _result(b.run("liar", node_id="2"))["error"]["code"] == "output_not_encodable"


def test_what_this_worker_cannot_do_is_rejected() -> None:
    app = App("t")

    @app.step
    def plain(order: Order) -> str:
        return order.id

    app.external_step("elsewhere", output=str)
    with bench(app) as b:
        unknown = _result(b.run("nobody"))
        elsewhere = _result(b.run("elsewhere", node_id="2"))
        needs = _result(b.run("plain", {"id": "a", "total": 1}, requires=["gpu"], node_id="3"))
        input_ = _result(b.run("plain", {"id": "a", "total": "much"}, node_id="4"))
    assert [r["outcome"] for r in (unknown, elsewhere, needs, input_)] == ["rejected"] * 4
    assert [r["error"]["code"] for r in (unknown, elsewhere, needs, input_)] == [
        "step_unknown",
        "step_unknown",
        "requires_unknown",
        "input_not_decodable",
    ]
    assert unknown["error"]["message"] == "no worker on default knows step nobody"
    assert "order.total" in input_["error"]["message"]
    assert b.slots.free == b.slots.total


def test_an_async_step_that_runs_too_long_is_cancelled_and_cleans_up() -> None:
    app = App("t")
    cleaned = threading.Event()

    @app.step
    async def coro() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with bench(app) as b:
        report = _result(b.run("coro", start_to_close_ms=50))
        assert cleaned.is_set()
        until(lambda: b.slots.free == b.slots.total)
        assert b.slots.lost == 0
    assert report["outcome"] == "failed"
    assert report["error"]["code"] == "timeout_start_to_close"
    assert report["error"].get("retryable", True) is True


def test_a_plain_step_that_runs_too_long_keeps_its_slot_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    app = App("t")
    gate = threading.Event()

    @app.step
    def plain() -> str:
        gate.wait()
        return "late"

    with bench(app, slots=4) as b:
        delivery = b.run("plain", start_to_close_ms=50)
        report = _result(delivery)
        assert report["error"]["code"] == "timeout_start_to_close"
        assert (b.slots.free, b.slots.lost, b.slots.exhausted) == (3, 1, False)
        b.run("plain", start_to_close_ms=50, node_id="2")
        until(lambda: b.slots.exhausted, what="over a quarter lost")
        gate.set()
        until(lambda: b.slots.free == 4)
        assert (b.slots.lost, b.slots.exhausted) == (0, False)
    assert len(delivery.results) == 1, "what it returned in the end is nobody's result"
    lines = [vars(record)["ductor"] for record in caplog.records if "after its timeout" in record.message]
    assert [(line["run_id"], line["node_id"], line["generation"]) for line in lines] == [
        ("run-1", "1", 1),
        ("run-1", "2", 1),
    ]


def test_a_step_that_is_told_to_stop_answers_cancelled() -> None:
    app = App("t")
    started = threading.Semaphore(0)

    @app.step
    async def coro() -> None:
        started.release()
        await asyncio.Event().wait()

    @app.step
    def plain() -> None:
        started.release()
        attempt = current_attempt()
        assert attempt.wait_for_stop(10)
        assert attempt.stop_requested
        attempt.raise_if_stopped()

    @app.step
    def stubborn() -> str:
        started.release()
        current_attempt().wait_for_stop(10)
        return "done all the same"

    with bench(app) as b:
        for step, outcome in (("coro", "cancelled"), ("plain", "cancelled"), ("stubborn", "completed")):
            task = task_of(step, node_id=step)
            delivery = b.submit(task)
            started.acquire()
            b.executor.stop(task.fence, "run cancelled")
            report = _result(delivery)
            assert report["outcome"] == outcome
            if outcome == "cancelled":
                assert report["error"]["message"] == "run cancelled"
        assert b.slots.free == b.slots.total


def test_a_stop_may_come_before_its_task() -> None:
    app = App("t")
    ran = []

    @app.step
    def plain() -> None:
        ran.append(1)

    with bench(app) as b:
        task = task_of("plain")
        b.executor.stop(task.fence, "run cancelled")
        assert _result(b.submit(task))["outcome"] == "cancelled"
        assert _result(b.run("plain", generation=2))["outcome"] == "completed"
    assert ran == [1]


def test_a_shielded_part_can_wait_for_the_stop() -> None:
    app = App("t")
    started = threading.Event()

    @app.step
    async def coro() -> str:
        waiting = asyncio.ensure_future(current_attempt().stopped())
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await waiting
        return current_attempt().stop_reason

    with bench(app) as b:
        task = task_of("coro")
        delivery = b.submit(task)
        assert started.wait(10)
        b.executor.stop(task.fence, "why not")
        assert _result(delivery)["output"] == "why not"


def test_the_same_fence_runs_once_and_its_result_is_repeated() -> None:
    app = App("t")
    gate, runs = threading.Event(), []

    @app.step
    def plain() -> int:
        runs.append(1)
        gate.wait()
        return len(runs)

    with bench(app) as b:
        task = task_of("plain")
        first, second = b.submit(task), b.submit(task)
        until(lambda: runs)
        assert b.slots.free == b.slots.total - 1
        gate.set()
        assert _result(first) == _result(second)
        third = b.submit(task)
        assert third.result == first.result
        assert _result(b.run("plain", generation=2))["output"] == 2
    assert len(runs) == 2


def test_resources_are_opened_once_passed_and_closed() -> None:
    app = App("t")
    events: list[str] = []

    @app.resource
    async def pool():  # type: ignore[no-untyped-def]
        events.append(f"open {threading.current_thread().name}")
        yield {"name": "pool"}
        events.append("close")

    @app.step
    def plain(n: int, *, db: dict[str, str] = Use(pool)) -> str:
        return f"{db['name']}{n}"

    @app.step
    async def coro(*, db: dict[str, str] = Use(pool)) -> str:
        return db["name"]

    with bench(app) as b:
        assert _result(b.run("plain", 3))["output"] == "pool3"
        assert _result(b.run("coro", node_id="2"))["output"] == "pool"
    assert events == ["open ductor-loop", "close"]


def test_a_resource_that_fails_to_open_may_be_tried_again() -> None:
    app = App("t")
    tries: list[int] = []

    @app.resource
    async def pool():  # type: ignore[no-untyped-def]
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not there yet")
        yield "pool"

    @app.step
    async def coro(*, db: str = Use(pool)) -> str:
        return db

    from worker_rigs import Bench

    b = Bench(app)
    with pytest.raises(ConnectionError, match="not there yet") as caught:
        b.executor.open()
    assert "resource 'pool'" in "".join(caught.value.__notes__)
    b.executor.open()
    try:
        assert _result(b.run("coro"))["output"] == "pool"
    finally:
        b.executor.close()


def test_abandoned_attempts_report_nothing_and_are_interrupted() -> None:
    app = App("t")
    ended, started = threading.Event(), threading.Event()

    @app.step
    async def coro() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with bench(app) as b:
        delivery = b.run("coro")
        assert started.wait(10)
        b.executor.abandon("the worker ends")
        assert ended.wait(10)
        until(lambda: b.slots.free == b.slots.total)
    assert delivery.results == []


def test_a_failure_that_says_too_much_is_cut_until_it_can_be_sent() -> None:
    app = App("t")

    @app.step
    def plain() -> None:
        raise TerminalError("\x01" * 16_000, details="d" * 890_000)

    with bench(app) as b:
        report = _result(b.run("plain"))
    assert len(report["error"]["details"]) == 890_000
    assert report["error"]["message"]


def test_a_worker_loads_no_database_driver() -> None:
    code = (
        "import sys, ductor_stream.worker.service, ductor_stream.worker.local, ductor_stream.kafka.task_log\n"
        "from ductor_stream import App, current_attempt\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('psycopg', 'psycopg_binary')))\n"
        "print(sorted(name for name in sys.modules if name.startswith(('ductor_stream.store', 'ductor_stream.coordinator'))))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n[]\n"


def test_what_is_handed_over_after_the_end_is_left_to_its_owner() -> None:
    """SyncMatch: a slot is reserved before a commit and used after it; the worker may have ended between the two."""
    app = App("t")
    ran: list[str] = []

    @app.step
    def plain() -> None:
        ran.append("plain")

    @app.step
    async def coro() -> None:
        ran.append("coro")

    with bench(app) as b:
        b.executor.close()
        deliveries = [b.run("plain"), b.run("coro", node_id="2")]
    assert ran == [] == [delivery.result for delivery in deliveries if delivery.result]
    assert (b.executor.busy, b.slots.free) == (0, b.slots.total)
