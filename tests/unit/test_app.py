"""Declarations: what they hold, and how they are used outside and inside a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from ductor_stream import App, Retry, Run, Use
from ductor_stream.engine.planners.loop import WorkflowLoop
from ductor_stream.errors import CalledOutsideStep, InvalidValue

if TYPE_CHECKING:
    from somewhere import Pool  # type: ignore[import-not-found]  # as users do: only a type checker sees it


@dataclass
class Order:
    id: str
    items: list[str]
    total: str


app = App("shop")
ORDER = Order("a", ["x"], "1.10")


@app.resource
async def db() -> AsyncIterator[Pool]:
    yield "pool"


@app.step(
    queue="payments",
    timeout=30,
    retry=Retry(max_attempts=5, initial=timedelta(milliseconds=200), maximum=60, non_retryable=("CardDeclined",)),
    heartbeat=timedelta(seconds=9),
)
async def charge(order: Order, *, note: str = "-", db: Pool = Use(db)) -> str:
    return f"{order.id} {note} {db}"


@app.step
def reserve(sku: str) -> str:
    return sku.upper()


@app.step()
async def nothing() -> None: ...


ship = app.external_step("ship", queue="shipping", input=Order, output=str)
ping = app.external_step("ping", output=bool, schedule_to_start=5)
approved = app.signal("approved", bool)


@app.workflow(version="1", timeout=timedelta(days=1), fails_on=(KeyError,))
async def fulfil(run: Run, order: Order) -> str:
    return await run.step(charge, order)


@app.workflow(name="fulfil", version="2")
async def fulfil_2(run: Run, order: Order) -> str:
    return order.id


@app.workflow
async def sweep(run: Run) -> int:
    return 1


def test_a_step_holds_what_was_declared() -> None:
    options = charge.definition.options
    assert (charge.name, charge.is_async, charge.own_heartbeat) == ("charge", True, True)
    assert (options.queue, options.start_to_close_ms, options.heartbeat_ms) == ("payments", 30_000, 9_000)
    assert (options.retry.max_attempts, options.retry.initial_ms, options.retry.maximum_ms) == (5, 200, 60_000)
    assert options.retry.non_retryable == ("CardDeclined",)
    assert charge.resources == {"db": db}
    assert charge.definition.output_type is str


def test_defaults_are_those_of_the_contract() -> None:
    options = reserve.definition.options
    assert (reserve.is_async, reserve.own_heartbeat, reserve.executor) == (False, False, None)
    assert (options.queue, options.start_to_close_ms) == ("default", 600_000)
    assert (options.schedule_to_start_ms, options.schedule_to_close_ms, options.heartbeat_ms) == (None, None, None)
    retry = options.retry
    assert (retry.max_attempts, retry.initial_ms, retry.factor, retry.maximum_ms) == (10, 1_000, 2.0, 60_000)
    assert (retry.jitter, Retry().policy()) == (0.2, retry)


def test_options_make_another_step_and_leave_the_first_alone() -> None:
    once = charge.options(retry=Retry(max_attempts=1), queue="vip", heartbeat=None)
    assert (once.name, once.definition.options.queue, once.definition.options.retry.max_attempts) == (
        "charge",
        "vip",
        1,
    )
    assert once.definition.options.start_to_close_ms == 30_000
    assert not once.own_heartbeat
    assert charge.definition.options.queue == "payments"
    assert once.definition.bind((ORDER,), {}) == charge.definition.bind((ORDER,), {})


def test_a_task_runs_as_the_worker_does_it() -> None:
    raw = charge.definition.bind((ORDER,), {"note": "n"})
    assert raw == b'[{"id":"a","items":["x"],"total":"1.10"},"n"]'
    found = asyncio.run(charge.invoke(charge.decode_input(raw), {"db": "pool"}))
    assert charge.encode_output(found) == b'"a n pool"'
    assert reserve.invoke(reserve.decode_input(b'["k"]'), {}) == "K"
    with pytest.raises(InvalidValue, match="result of reserve: Expected `str`, got `int`"):
        reserve.encode_output(3)
    with pytest.raises(InvalidValue, match="result of nothing: Expected `null`"):
        nothing.encode_output("x")


def test_an_external_step_takes_one_input_or_none() -> None:
    assert ship.definition.bind((ORDER,), {}) == b'[{"id":"a","items":["x"],"total":"1.10"}]'
    assert ping.definition.bind((), {}) == b"[]"
    assert ping.definition.options.schedule_to_start_ms == 5_000
    with pytest.raises(TypeError):
        ship.definition.bind((), {})
    with pytest.raises(CalledOutsideStep, match="external"):
        ship.invoke([ORDER], {})


def test_outside_a_workflow_a_step_is_a_function() -> None:
    assert asyncio.run(charge(ORDER, db="mine")) == "a - mine"
    assert reserve("k") == "K"
    with pytest.raises(TypeError, match=r"charge\(\) outside a worker needs db="):
        _ = charge(ORDER)


class NoTimers:
    def timer_created(self, handle: Any) -> None: ...

    def timer_cancelled(self, handle: Any) -> None: ...


@pytest.mark.parametrize("call", [lambda: reserve("k"), lambda: charge(ORDER, db="mine")])
def test_inside_a_workflow_a_direct_call_is_refused(call: Callable[[], Any]) -> None:
    async def workflow() -> None:
        call()

    loop = WorkflowLoop(now=0.0, timers=NoTimers())
    task = loop.spawn_root(workflow())
    loop.run_ready()
    with pytest.raises(CalledOutsideStep, match=r"await run\.step\("):
        task.result()
    loop.close()


def test_workflows_by_name_and_version() -> None:
    assert list(app.workflows) == [("fulfil", "1"), ("fulfil", "2"), ("sweep", "1")]
    assert (app.default_version("fulfil"), app.default_version("sweep")) == ("2", "1")
    with pytest.raises(KeyError):
        app.default_version("nope")
    definition = fulfil.definition
    assert (definition.input_type, definition.output_type, definition.takes_input) == (Order, str, True)
    assert (definition.run_timeout_ms, definition.fails_on) == (86_400_000, (KeyError,))
    assert (sweep.definition.takes_input, sweep.definition.run_timeout_ms) == (False, None)
    assert fulfil.encode_input(ORDER) == b'{"id":"a","items":["x"],"total":"1.10"}'
    with pytest.raises(InvalidValue, match="input of sweep: Expected `null`"):
        sweep.encode_input(1)


def test_the_digest_names_the_code() -> None:
    digests = {workflow.definition.digest for workflow in app.workflows.values()}
    assert len(digests) == 3
    twin = App("twin").workflow(sweep.definition.function)
    assert twin.definition.digest == sweep.definition.digest


def _typed(source: str) -> str:
    names: dict[str, Any] = {"app": App("typed")}
    exec(source, names)  # noqa: S102 - as a shell does it
    digest: str = names["w"].definition.digest
    return digest


def test_code_without_a_file_has_a_digest_of_its_bytecode() -> None:
    one = "@app.workflow\nasync def w(run):\n    return x in {1, 'a', None} if (x := 1) else 2"
    assert _typed(one) == _typed(one)
    assert _typed(one) != _typed(one.replace("else 2", "else 3"))


def test_signals_encode_what_fits() -> None:
    assert approved.encode(True) == b"true"
    with pytest.raises(InvalidValue, match="payload of approved: Expected `bool`"):
        approved.encode("yes")  # type: ignore[arg-type]


def test_queues_with_and_without_what_others_execute() -> None:
    assert app.queues() == ("default", "payments", "shipping")
    assert app.queues(external=False) == ("default", "payments")


def test_include_takes_over_everything() -> None:
    whole = App("whole")
    whole.include(app)
    whole.include(app)
    assert (whole.steps, whole.workflows, whole.signals) == (app.steps, app.workflows, app.signals)
    assert whole.resources == {"db": db}


def test_classes_of_the_surrounding_function_are_found() -> None:
    @dataclass
    class Local:
        n: int

    local = App("local")

    @local.step
    def double(it: Local) -> Local:
        return Local(it.n * 2)

    @local.workflow()
    async def flow(run: Run, it: Local | None = None) -> Local:
        return await run.step(double, Local(1))

    assert double.decode_input(b'[{"n":2}]') == [Local(2)]
    assert flow.encode_input(None) == b"null"
