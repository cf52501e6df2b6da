"""R10: what a tick costs, and what it writes, is the same after ten steps and after ten thousand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ductor_stream.engine.events import AttemptFinished, RunStarted, SignalReceived
from ductor_stream.engine.state import RunState, encode_header, encode_records
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import abandoning, ticked
from unit.engine.programs import SIGNALS, STEPS, workflow
from unit.engine.test_fan_out import calls_of

EARLY, LATE = 10, 10_000
ALMOST = 1.2
"""A dict that grows, a number with one digit more: but nothing that is proportional to what came before."""


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


class Kept:
    """A run as its owner keeps it: state and coroutine, and no history."""

    def __init__(self, function: Any) -> None:
        self._definitions = {("wf", "1"): workflow(function)}
        self._state: RunState | None = None
        self._live: Any = None
        self.written = 0

    def hear(self, event: Any) -> RunState:
        now = 1_000 if self._state is None else self._state.header.now + 1
        done = ticked(self._definitions, "r", self._state, [Stamped(now, event)], live=self._live)
        assert done.state is not None
        assert done.live is not None
        self._state, self._live = done.state, done.live
        self.written = len(encode_records(done.records)) + len(encode_header(done.state.header))
        return done.state

    def goes_on(self, number: int) -> None:
        """A step ends, or a word comes: whatever the run waits for."""
        assert self._state is not None
        (node,) = self._state.nodes.values()
        if node.kind == "step":
            self.hear(AttemptFinished(1, node.node_id, node.generation, "completed", b"1"))
        else:
            self.hear(SignalReceived(f"s{number}", "x", b"1"))


async def steps(run: Any) -> None:
    while True:
        await run.step(STEPS["a"], 1)


async def words_and_steps(run: Any) -> None:
    async for word in run.signals(SIGNALS["x"]):
        await run.step(STEPS["a"], word)


@pytest.mark.parametrize("function", [steps, words_and_steps])
def test_a_tick_costs_the_same_however_long_the_history(function: Any) -> None:
    kept = Kept(function)
    kept.hear(RunStarted("wf", "1", input=b"null", start_id="s1"))
    cost: dict[int, tuple[int, int]] = {}
    for number in range(1, LATE + 1):
        if number not in (EARLY, EARLY + 1, LATE - 1, LATE):
            kept.goes_on(number)
            continue
        calls = calls_of(lambda number=number: kept.goes_on(number))
        cost[number] = (calls, kept.written)
    for early, late in ((EARLY, LATE), (EARLY + 1, LATE - 1)):
        grown = [after / before for before, after in zip(cost[early], cost[late], strict=True)]
        assert max(grown) <= ALMOST, cost
