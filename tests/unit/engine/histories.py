"""Histories that between them hold every kind of event, fact and decision: the golden bytes of a release.

``write()`` writes those of the current release. Run it once for a release that is about to go out, never to make a
failing test pass: what is written in production stays to be read.

    PYTHONPATH=tests:. python -c "from unit.engine.histories import write; write()"
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ductor_stream.declarations import Workflow
from ductor_stream.engine.definition import RetryPolicy, StepOptions, WorkflowDefinition
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptLost,
    ChildFinished,
    Condemned,
    Failure,
    Parent,
    Redeployed,
    RunStarted,
    SignalReceived,
)
from ductor_stream.engine.state import encode_header, state_bytes
from ductor_stream.engine.tick import Stamped
from ductor_stream.errors import StepError
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import signal, step, workflow

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "engine"
CURRENT = GOLDEN / tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

OPTIONS = StepOptions(
    queue="payments",
    start_to_close_ms=30_000,
    schedule_to_start_ms=60_000,
    schedule_to_close_ms=3_600_000,
    heartbeat_ms=5_000,
    retry=RetryPolicy(3, 100, 3.0, 1_000, 0.1, ("CardDeclined",)),
)
CHARGE, RESERVE = step("charge", OPTIONS), step("reserve")
APPROVED = signal("approved")
PACK: Workflow[Any, Any] = Workflow(WorkflowDefinition("pack", "3", lambda run: run, Any, Any, True, "d"))
START = RunStarted("wf", "1", b'{"id":"42"}', "start-1", "reject", 86_400_000, {"traceparent": "00-1-2-01"})
NOW = 1_700_000_000_000
NO = Failure("user", "CardDeclined", "declined ünïcode", False, 250, b'{"code":7}', "shop.py:3 in charge")


class Golden(msgspec.Struct):
    """One file: the header as its row holds it, the records as they were committed, the whole state to compare."""

    header: bytes
    entries: list[bytes]
    state: bytes


# -- workflows: their code stays as it is, or old runs could not be replayed ------------------


async def fulfil(run: Any, order: Any) -> Any:
    """Nearly everything that code can do."""
    run.set_view({"stage": "reserving", "lot": run.random.randint(1, 9)})
    try:
        async with asyncio.timeout(3_600):
            stock = await asyncio.gather(*(run.step(RESERVE, order, n) for n in range(2)))
    except TimeoutError:
        return "no stock"
    if run.patched("ask-first"):
        stock.append(await run.wait_signal(APPROVED))
    tasks = [asyncio.create_task(run.step(CHARGE, "card")), asyncio.create_task(asyncio.sleep(60, "slow"))]
    _, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    try:
        receipt = await tasks[0]
    except (StepError, asyncio.CancelledError) as error:
        receipt = type(error).__name__
    return [stock, receipt, await run.child(PACK, stock), await run.wait_signal(APPROVED)]


async def waits_for_all(run: Any, order: Any) -> Any:
    """Awaits one node of each kind."""
    await run.child(PACK, "detached", run_id="loose", detach=True)
    children = (run.child(PACK, n, parent_close="terminate") for n in range(2))
    steps = (run.step(CHARGE, n) for n in range(2))
    return await asyncio.gather(*children, *steps, asyncio.sleep(9), run.wait_signal(APPROVED), return_exceptions=True)


async def counts(run: Any, order: Any) -> Any:
    """Continues as new after each signal, and fails at the third."""
    if (value := await run.wait_signal(APPROVED)) == 3:
        await run.step(CHARGE, value)
    run.continue_as_new([value])


async def counts_numbers(run: Any, order: Any) -> Any:
    """Takes numbers only."""
    return await run.wait_signal(signal("number", int))


async def cleans_up(run: Any, order: Any) -> Any:
    """Ends by a cancel."""
    try:
        await run.step(RESERVE, 1)
    finally:
        await run.step(RESERVE, "release")


_BUGGY = """async def buggy(run, order):
    await run.step(RESERVE, 1)
    raise ValueError("a bug in shop.py")
"""


def buggy() -> Callable[..., Any]:
    """A function in a file that is called the same everywhere: its name is part of the record."""
    names: dict[str, Any] = {"RESERVE": RESERVE}
    exec(compile(_BUGGY, "shop.py", "exec"), names)  # noqa: S102 - the text stands above
    found: Callable[..., Any] = names["buggy"]
    return found


def _driver(function: Callable[..., Any], start: RunStarted = START) -> Driver:
    driver = Driver(workflow(function, takes_input=True, input_type=Any, digest="d1"))
    driver.apply(Stamped(NOW, start))
    return driver


# -- histories --------------------------------------------------------------------------------


def completed() -> Driver:
    """From the start to the result, with failures, time-outs and late results on the way."""
    driver = _driver(fulfil)
    driver.finish("2.1", "one")
    rejected = AttemptFinished(1, "3.1", 1, "rejected", None, Failure("step_unknown", "StepUnknown", "no"), "host-1")
    driver.hear(rejected)
    driver.pass_time()
    driver.finish("3.1", "two")
    driver.send("approved", {"by": "Åsa"}, "s1")
    driver.hear(AttemptLost(1, "5.1", 1))
    driver.time_out("5.1", "heartbeat_lost")
    driver.pass_time()
    failure = Failure("user", "Busy", "later", retry_after_ms=10)
    driver.hear(AttemptFinished(1, "5.1", 2, "failed", None, failure, "host-2", "t0", "t1", b'{"page":17}'))
    driver.pass_time()
    driver.finish("5.1", failure=NO)
    driver.hear(rejected)
    driver.send("approved", True, "s2")
    driver.hear(ChildFinished(1, "7", "r/1/7", "completed", b'"packed"'))
    driver.send("approved", "too late", "s3")
    return driver


def everything_held() -> Driver:
    """Suspended for want of its code, and nothing that comes is lost: every kind of fact is held."""
    driver = _driver(waits_for_all, msgspec.structs.replace(START, parent=Parent("p", 1, "3")))
    driver.deploy()
    driver.pass_time()
    driver.hear(ChildFinished(1, "2.1", "r/1/2.1", "completed", b"1"))
    driver.hear(ChildFinished(1, "3.1", "r/1/3.1", "failed", None, NO))
    driver.finish("4.1", "receipt")
    driver.finish("5.1", failure=NO)
    driver.send("approved", None, "s1")
    driver.order("cancel", reason="customer asked")
    return driver


def never_begun() -> Driver:
    """Started before its workflow was deployed anywhere."""
    driver = Driver()
    driver.apply(Stamped(NOW, msgspec.structs.replace(START, version="")))
    driver.order("pause", reason="wait")
    return driver


def continued_and_retried() -> Driver:
    """Three executions by ContinueAsNew, the last of which failed and is tried again."""
    driver = _driver(counts)
    driver.apply(*(Stamped(NOW + n, SignalReceived(f"s{n}", "approved", b"%d" % n)) for n in (1, 2, 3, 4)))
    while driver.state.held:
        driver.pass_time()
    driver.finish("2", failure=NO)
    driver.order("retry", reason="card renewed")
    return driver


def signals_in_place() -> Driver:
    """Signals that are too large to be written again with each execution, then little enough that is left."""
    driver = _driver(counts)
    numbers = (SignalReceived(f"s{n}", "approved", b"%d%s" % (n, b" " * 3_000)) for n in (1, 2, 4, 5, 3))
    driver.apply(*(Stamped(NOW + n, event) for n, event in enumerate(numbers, 1)))
    while driver.state.held:
        driver.pass_time()
    driver.finish("2", failure=NO)
    driver.order("reset", reason="again", to_node="2")
    return driver


def suspended_by_a_bug() -> Driver:
    """A bug, other code with another bug, a cancel, and the end by force."""
    driver = _driver(buggy())
    driver.finish("1", "one")
    return driver


def condemned() -> Driver:
    """Failed by force after a redeployment that did not help."""
    driver = suspended_by_a_bug()
    driver.hear(Redeployed("d2", "1"))
    driver.hear(Condemned("livelock", "no progress"))
    return driver


def passed_over() -> Driver:
    """A signal whose payload is not what the code asks for."""
    driver = _driver(counts_numbers)
    driver.hear(SignalReceived("s1", "number", b'"seven"'))
    driver.hear(SignalReceived("s2", "number", b"7"))
    return driver


def cancelled() -> Driver:
    """Ended by itself after its clean-up."""
    driver = _driver(cleans_up)
    driver.order("cancel")
    driver.finish("2")
    return driver


def timed_out_and_restarted() -> Driver:
    """Its own time was over; the next start began a second execution, paused at once."""
    driver = _driver(cleans_up)
    driver.pass_time(driver.header.run_due_at)
    driver.hear(msgspec.structs.replace(START, start_id="start-2", on_conflict="restart_if_failed"))
    driver.hear(SignalReceived("s1", "approved", b"1"))
    driver.order("pause")
    return driver


HISTORIES: dict[str, Callable[[], Driver]] = {
    made.__name__: made
    for made in (
        completed,
        everything_held,
        never_begun,
        continued_and_retried,
        signals_in_place,
        suspended_by_a_bug,
        condemned,
        passed_over,
        cancelled,
        timed_out_and_restarted,
    )
}


def golden_of(driver: Driver) -> bytes:
    """The file of a history."""
    return msgspec.msgpack.encode(Golden(encode_header(driver.header), driver.entries, state_bytes(driver.state)))


def write() -> None:
    """Write the golden files of the current release."""
    CURRENT.mkdir(parents=True, exist_ok=True)
    with abandoning():
        for name, made in HISTORIES.items():
            (CURRENT / f"{name}.bin").write_bytes(golden_of(made()))
