"""A wait for a signal that has a deadline: it gives up, and the signal stays for whoever asks next, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ductor_stream.engine import values
from ductor_stream.engine.events import SignalReceived
from ductor_stream.engine.tick import Stamped, due_events, replay
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import SIGNALS, workflow

X = SIGNALS["x"]
DUE = 6_000
"""When the first wait of five seconds ends, of a run that started at 1,000."""


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


async def by_timeout(run: Any) -> Any:
    heard: list[Any] = []
    while len(heard) < 4:
        try:
            async with asyncio.timeout(5):
                heard.append(await run.wait_signal(X))
        except TimeoutError:
            heard.append("late")
    return heard


async def by_wait_for(run: Any) -> Any:
    heard: list[Any] = []
    while len(heard) < 4:
        try:
            heard.append(await asyncio.wait_for(run.wait_signal(X), 5))
        except TimeoutError:
            heard.append("late")
    return heard


async def by_one_iterator(run: Any) -> Any:
    """The same one before and after a deadline: it goes on where it was."""
    heard: list[Any] = []
    words = run.signals(X)
    while len(heard) < 4:
        try:
            async with asyncio.timeout(5):
                heard.append(await anext(words))
        except TimeoutError:
            heard.append("late")
    return heard


async def by_loops(run: Any) -> Any:
    """A loop over the signals in each block, that its deadline or the fourth word ends."""
    heard: list[Any] = []
    while len(heard) < 4:
        try:
            async with asyncio.timeout(5) as block:
                async for word in run.signals(X):
                    heard.append(word)
                    if len(heard) == 4:
                        break
                    block.reschedule(asyncio.get_running_loop().time() + 5)
        except TimeoutError:
            heard.append("late")
    return heard


WAITS = [by_timeout, by_wait_for, by_one_iterator, by_loops]
every_wait = pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
kept_or_not = pytest.mark.parametrize("lost", [False, True], ids=["kept", "rebuilt"])


class Waiting(Driver):
    """A run whose owner keeps its coroutine, or rebuilds it for each tick."""

    def __init__(self, wait: Any, lost: bool) -> None:
        self.definition = workflow(wait)
        self.lost = lost
        super().__init__(self.definition)
        self.start()

    def apply(self, *events: Stamped) -> Any:
        if self.lost:
            self.lose()
        return super().apply(*events)

    def due(self, at: int) -> list[Stamped]:
        return [Stamped(at, event) for event in due_events(self.state, at)]

    def ended(self) -> Any:
        """How the run ended; its history leads there again, and nothing of it is left."""
        assert replay(self.definition, "r", self.history()) is None
        assert (self.state.signals, self.state.nodes) == ([], {})
        return self.result


def word(n: int, at: int) -> Stamped:
    return Stamped(at, SignalReceived(f"s{n}", "x", values.encode(n)))


@every_wait
@kept_or_not
def test_in_time_ends_the_wait_and_its_timer(wait: Any, lost: bool) -> None:
    driver = Waiting(wait, lost)
    for n in range(1, 5):
        assert sorted(node.kind for node in driver.state.nodes.values()) == ["signal", "timer"]
        driver.apply(word(n, DUE - 1))
    assert driver.ended() == [1, 2, 3, 4]


@every_wait
@kept_or_not
def test_after_the_deadline_it_is_there_for_the_next_wait(wait: Any, lost: bool) -> None:
    driver = Waiting(wait, lost)
    driver.pass_time(DUE)
    driver.apply(word(1, DUE + 1))
    driver.pass_time()
    driver.apply(word(2, driver.header.now + 1))
    assert driver.ended() == ["late", 1, "late", 2]


@every_wait
@kept_or_not
@pytest.mark.parametrize("together", [True, False], ids=["one tick", "a tick each"])
@pytest.mark.parametrize("first", ["signal", "deadline"])
def test_what_races_the_deadline_is_taken_once(wait: Any, lost: bool, together: bool, first: str) -> None:
    """At the very millisecond of the deadline: whichever the owner heard first counts, the other loses nothing."""
    driver = Waiting(wait, lost)
    due = driver.due(DUE)
    assert len(due) == 1
    events = [word(1, DUE), *due] if first == "signal" else [*due, word(1, DUE)]
    for tick in [events] if together else [[event] for event in events]:
        driver.apply(*tick)
    driver.apply(word(2, DUE + 1), word(3, DUE + 1))
    if first == "signal":
        driver.apply(word(4, DUE + 1))
    assert driver.ended() == ([1, 2, 3, 4] if first == "signal" else ["late", 1, 2, 3])


@every_wait
@kept_or_not
@pytest.mark.parametrize("at", [DUE - 1, DUE + 1])
def test_what_came_during_a_pause_is_heard_before_a_deadline_that_passed_in_it(wait: Any, lost: bool, at: int) -> None:
    driver = Waiting(wait, lost)
    driver.order("pause")
    assert driver.due(DUE) == [], "a run that is paused gives up nothing"
    driver.apply(word(1, at), word(2, at))
    driver.clock = DUE + 100_000
    driver.order("resume")
    driver.pass_time(driver.clock)
    driver.apply(word(3, driver.clock))
    assert driver.ended() == [1, 2, "late", 3]


@every_wait
def test_a_retry_goes_on_behind_what_was_taken(wait: Any) -> None:
    """What an execution has taken within a deadline is not there once more for the next one."""

    async def fails_once(run: Any) -> Any:
        heard = await wait(run)
        await asyncio.wait_for(run.wait_signal(SIGNALS["y"]), 5)
        return heard

    driver = Driver(workflow(fails_once))
    driver.start()
    for n in range(1, 5):
        driver.send("x", n)
    driver.pass_time()
    assert driver.status == "failed"
    driver.order("retry")
    driver.send("y")
    assert driver.result == [1, 2, 3, 4]
