"""Signals that nobody has taken are not written again with each execution: they stay where they stand in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from ductor_stream.engine.events import CarriedSignal, Continued, ContinuedInPlace, Failure, RunStarted, SignalReceived
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.rebuild import refusals
from ductor_stream.engine.state import Record, decode_records, state_bytes
from ductor_stream.engine.tick import Stamped, rebuild, replay
from ductor_stream.errors import InvariantViolation
from ductor_stream.testing.replay import History, export_history
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import STEPS, signal, workflow

TICKET = signal("ticket")
NO = Failure("user", "Oops", "no", retryable=False)


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


async def taking(run: Any, heard: Any) -> Any:
    """Takes a few, one of them by a step, and continues as new; ends at the one that says so."""
    for _ in range(run.random.randint(1, 4)):
        ticket = await run.wait_signal(TICKET)
        if ticket["number"] != heard[0] + 1:
            raise ValueError(f"{ticket['number']} after {heard[0]}")
        heard = [ticket["number"]]
        if ticket["number"] % 7 == 0:
            await run.step(STEPS["a"], ticket["number"])
        if ticket["last"]:
            return heard[0]
    run.continue_as_new(heard)


TAKING = workflow(taking, takes_input=True, input_type=Any)


class Stored(Driver):
    """A run whose owner never keeps anything: each tick is built from the bytes that were committed."""

    def history(self) -> list[Record]:
        return [record for entry in self.entries for record in decode_records(entry)]

    def apply(self, *events: Stamped) -> Any:
        self.lose()
        done = super().apply(*events)
        own = lineage(self.history(), self.header.execution)
        built = rebuild("r", own)
        built.header.lifecycle_seq = self.header.lifecycle_seq
        assert state_bytes(built) == state_bytes(self.state)
        assert (built.span, built.size) == (self.state.span, self.state.size)
        return done

    def written(self) -> int:
        return sum(len(entry) for entry in self.entries)

    def kept(self) -> int:
        """Bytes from the last execution on that holds its signals: what a load reads."""
        total = 0
        for entry in self.entries:
            begun = [each.event for each in decode_records(entry) if type(each.event) is Continued]
            total = len(entry) if begun else total + len(entry)
        return total

    def in_place(self) -> int:
        return sum(isinstance(record.event, ContinuedInPlace) for record in self.history())


def tickets(numbers: range, last: int, padding: int = 100) -> list[Stamped]:
    return [
        Stamped(
            1_001, SignalReceived(f"s{n}", "ticket", b'{"number":%d,"last":%s,"pad":"%s"}' % (n, end, b"x" * padding))
        )
        for n in numbers
        for end in [b"true" if n == last else b"false"]
    ]


def go_on(driver: Driver) -> None:
    """Whatever is due, and whatever is asked of a worker."""
    while not driver.state.closed and driver.status == "running":
        if driver.state.nodes and (node := next(iter(driver.state.nodes.values()))).kind == "step":
            driver.finish(node.node_id, "done")
        elif driver.state.held:
            driver.pass_time()
        else:
            return


def backlog(count: int, padding: int = 100) -> Stored:
    driver = Stored(TAKING)
    driver.start(input=b"[0]")
    driver.apply(*tickets(range(1, count + 1), count, padding))
    go_on(driver)
    assert driver.result == count
    return driver


def test_what_is_written_is_linear_in_the_signals() -> None:
    """Ten times the backlog was a hundred times the bytes."""
    few, many = backlog(60, 1_500), backlog(600, 1_500)
    assert few.in_place() > 5
    assert many.in_place() > 100
    assert many.written() < 15 * few.written()
    taken = sum(len(each.event.payload) for each in many.applied if isinstance(each.event, SignalReceived))
    assert many.written() < 4 * taken


async def working(run: Any, heard: Any) -> Any:
    """One large step for each signal, and on."""
    run.set_view("x" * heard)
    await run.wait_signal(TICKET)
    await run.step(STEPS["a"], "x" * heard)
    run.continue_as_new(heard)


@pytest.mark.parametrize(("asked", "answered"), [(1, 20_000), (10_000, 1)], ids=["results", "inputs"])
def test_what_is_kept_is_about_the_backlog_however_large_the_records(asked: int, answered: int) -> None:
    """Few large records between two copies count as much as many small ones: the bound of a history is in bytes."""
    driver = Stored(workflow(working, takes_input=True, input_type=int))
    driver.start(input=b"%d" % asked)
    driver.apply(*tickets(range(1, 41), 0, padding=1_000))
    waiting, most = driver.written(), 0
    for number in range(41, 101):
        driver.finish(next(node.node_id for node in driver.state.nodes.values()), "x" * answered)
        driver.apply(*tickets(range(number, number + 1), 0, padding=1_000))
        most = max(most, driver.kept())
        driver.pass_time()
    assert driver.in_place() > 10
    assert most < 3 * waiting
    assert driver.written() < 3 * 60 * (3 * asked + answered + 1_000)


def test_few_signals_are_copied_as_before() -> None:
    """What fits the last release is written as it reads it; the journal begins anew with each execution."""
    driver = backlog(10, padding=10)
    assert driver.in_place() == 0
    assert driver.header.execution > 1


@pytest.mark.parametrize("seed", range(12))
def test_more_signals_pauses_and_retries_on_the_way(seed: int) -> None:
    """Order kept, none lost, none twice; each execution can be replayed from what is stored."""
    draw = Random(seed)
    driver, sent = Stored(TAKING), 0
    driver.start(input=b"[0]")
    while not (driver.state.closed and driver.status == "completed"):
        step = next((node for node in driver.state.nodes.values() if node.kind == "step"), None)
        if driver.status == "failed":
            driver.order("retry")
        elif draw.random() < 0.5 and sent < 80:
            more = range(sent + 1, min(80, sent + draw.randint(1, 30)) + 1)
            driver.apply(*tickets(more, 80, padding=draw.choice([10, 5_000])))
            sent = more[-1]
        elif driver.status == "paused" or (step is None and driver.status == "running" and draw.random() < 0.1):
            driver.order("resume" if driver.status == "paused" else "pause")
        elif step is not None:
            driver.finish(step.node_id, "done", failure=NO if draw.random() < 0.3 else None)
        elif driver.state.held:
            driver.pass_time()
    assert driver.result == 80
    assert driver.in_place() > 0
    stored = driver.history()
    for execution in range(1, driver.header.execution + 1):
        assert replay(TAKING, "r", lineage(stored, execution)) is None


def test_a_load_walks_once_over_what_it_leans_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each signal is looked at once, not once for each execution that it waited through."""
    count = 200
    stored = backlog(count, padding=1_500).history()
    in_place = [r.execution for r in stored if isinstance(r.event, ContinuedInPlace)]
    expected = lineage(stored, in_place[-1])
    made: list[str] = []

    def counted(*fields: Any) -> CarriedSignal:
        made.append(fields[0])
        return CarriedSignal(*fields)

    monkeypatch.setattr("ductor_stream.engine.fork.CarriedSignal", counted)
    assert lineage(iter(stored), in_place[-1]) == expected
    assert len(in_place) > 30
    assert len(made) <= count
    made.clear()
    assert refusals("r", stored) == {}
    assert made == []


def failing_in_place() -> Stored:
    """A run that leans on earlier executions, and has failed in a step."""
    driver = Stored(TAKING)
    driver.start(input=b"[0]")
    driver.apply(*tickets(range(1, 31), 30, padding=5_000))
    while not driver.state.span or not any(node.kind == "step" for node in driver.state.nodes.values()):
        if (node := next(iter(driver.state.nodes.values()), None)) is not None and node.kind == "step":
            driver.finish(node.node_id)
        else:
            driver.pass_time()
    driver.finish(next(iter(driver.state.nodes)), failure=NO)
    assert driver.status == "failed"
    return driver


@pytest.mark.parametrize("kind", ["retry", "reset"])
def test_a_failed_run_goes_on_with_its_backlog(kind: Any) -> None:
    driver = failing_in_place()
    waiting = [each.signal_id for each in driver.state.signals]
    first = next(d.node_id for r in driver.history()[::-1] for d in r.decisions or () if hasattr(d, "kind"))
    driver.order(kind, to_node=first)
    assert driver.state.span
    assert [each.signal_id for each in driver.state.signals][-len(waiting) :] == waiting
    go_on(driver)
    assert driver.result == 30


def test_a_run_that_is_restarted_leans_on_nothing() -> None:
    driver = failing_in_place()
    driver.hear(RunStarted("wf", "1", b"[0]", "s2", "restart_if_failed"))
    assert (driver.state.span, driver.state.signals) == (0, [])


def test_an_exported_history_is_whole() -> None:
    driver = failing_in_place()
    stored = driver.history()
    exported = export_history("r", stored)
    assert b'"format":2' in exported
    read = msgspec.json.decode(exported, type=History)
    assert replay(TAKING, "r", lineage(read.records, driver.header.execution)) is None
    assert b'"format":1' in export_history("r", [r for r in stored if r.execution == 1])


def test_what_leans_on_folded_history_is_told_and_not_guessed() -> None:
    driver = failing_in_place()
    driver.order("pause")  # refused: it has ended
    stored = driver.history()
    last = driver.header.execution
    assert [code for (execution, _), code in refusals("r", stored).items() if execution == last] == ["run_closed"]
    for folded in (
        [r for r in stored if r.execution == last],
        stored[len(stored) - sum(r.execution >= last - 1 for r in stored) + 1 :],
    ):
        with pytest.raises(InvariantViolation, match="which is not there"):
            lineage(folded, last)
        assert refusals("r", folded) == {}
