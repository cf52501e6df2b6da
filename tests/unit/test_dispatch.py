"""Outbox rows count as confirmed in a gap-free prefix, SyncMatch attempts included (protocol 11, 13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ductor_stream.clock import StoreClock
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.engine.ids import Fence
from ductor_stream.ports import Outgoing, Undeliverable
from ductor_stream.telemetry.metrics import Metrics

RECORD = Outgoing("t", b"r", b"{}")


class Log:
    """Keeps acknowledgements until ``answer``."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Sequence[Undeliverable]], None]] = []

    def produce(self, records: Sequence[Outgoing], acknowledged: Callable[[Sequence[Undeliverable]], None]) -> None:
        self.asked.append(acknowledged)

    def answer(self, *numbers: int) -> None:
        for number in numbers:
            self.asked[number]([])


class Local:
    """Takes every task and is not heard of."""

    def run_all(self, tasks: object) -> None: ...


def fence(node: int) -> Fence:
    return Fence("r", 1, str(node), 1)


def dispatcher(**bounds: int) -> tuple[Dispatcher, Log]:
    log = Log()
    made = Dispatcher(CoordinatorConfig(**bounds), log, StoreClock(), Metrics(), Local())  # type: ignore[arg-type]
    made.open(0, 0)
    return made, log


def test_rows_are_confirmed_without_a_gap() -> None:
    made, log = dispatcher()
    for seq in (1, 2, 3):
        made.send(0, seq, [RECORD])
    log.answer(1, 2)
    assert made.confirmed(0) == 0
    log.answer(0)
    assert made.confirmed(0) == 3


def test_a_row_with_attempts_in_process_is_confirmed_by_the_commit_that_discharges_them() -> None:
    """Protocol 13: the last commit of a partition that goes hands over what runs here, and drops its rows with it."""
    made, log = dispatcher()
    made.send(0, 1, [RECORD], {fence(1): RECORD, fence(2): RECORD})
    made.send(0, 2, [], {fence(3): RECORD})
    made.send(0, 3, [RECORD])
    both = frozenset({fence(1), fence(2)})
    assert made.confirmed(0, both) == 0, "the record beside them is not there yet"
    log.answer(0)
    assert made.confirmed(0, frozenset({fence(1)})) == 0
    assert made.confirmed(0, both) == 1
    assert made.confirmed(0, both | {fence(3)}) == 2
    assert made.confirmed(0) == 0, "that commit has not landed"
    made.discharge(both)
    assert made.confirmed(0) == 1


def test_what_is_unconfirmed_is_bounded_in_batches_of_a_partition_and_in_bytes_of_all() -> None:
    """Protocol 11: large records crowd a process long before their batches are many, whichever partitions they are of."""
    made, log = dispatcher(unconfirmed_limit=4, unconfirmed_bytes=1_000)
    made.open(1, 0)
    large = Outgoing("t", b"r", b"x" * 400)
    made.send(0, 1, [RECORD])
    assert made.crowding() == 1 / 4
    made.send(0, 2, [large])
    made.send(1, 1, [], {fence(1): large})
    assert made.crowding() == made.crowd == 0.802
    made.send(1, 2, [large])
    assert (made.unconfirmed(), made.crowding()) == (2, 1.202)
    log.answer(0, 1, 2)
    assert made.crowding() == 0.8, "a row that stands behind one that is not done would be redriven too"
    made.discharge([fence(1)])
    assert (made.crowding(), made.crowd) == (0.0, 0.0)
