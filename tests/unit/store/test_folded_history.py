"""What is read of a history whose beginning was folded away, in the middle of an execution (decision 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import SIGNALS, workflow

from ductor_stream.engine.events import RunStarted
from ductor_stream.engine.rebuild import refusals
from ductor_stream.engine.state import Record
from ductor_stream.outcomes import REJECTED, Question
from ductor_stream.store.outcomes import OutcomeReader


async def listens(run: Any) -> Any:
    """Ends with the first signal."""
    return await run.wait_signal(SIGNALS["x"])


@pytest.fixture
def records() -> Iterator[list[Record]]:
    """Of a run that has refused the start ``s2``; the record before that, its own start, was folded away."""
    with abandoning():
        driver = Driver(workflow(listens))
        driver.start()
        driver.hear(RunStarted("wf", "1", b"null", "s2", "reject"))
        assert [record.seq for record in driver.records] == [1, 2]
        assert refusals("r", driver.records) == {(1, 2): "run_exists"}
        driver.send("x", 7)
        yield driver.records[1:]


def test_a_refused_start_is_not_taken_for_the_beginning(records: list[Record]) -> None:
    assert refusals("r", records) == {}


def test_who_was_refused_does_not_get_the_run_of_another(records: list[Record]) -> None:
    entry = Mock(records=records)
    row = ("r", "s2", "wf", "1", "completed", "", 1, b"7", None, None, True)
    reader = OutcomeReader("", "shop")
    reader._reader = Mock(find_outcomes=Mock(return_value=[row]), whole_history=Mock(return_value=[entry]))
    assert reader.outcomes([Question("r", "s2")])[Question("r", "s2")].status == REJECTED
