"""A coordinator process for tests: ``coordinator_child.py BOOTSTRAP DATABASE NAMESPACE INSTANCE POINT``.

It dies by SIGKILL (or freezes by SIGSTOP) at ``POINT``, the third time that its loop comes by there with tasks to dispatch or results to
apply: then there is something before it, something in flight, and something left to do. The points are laid into
the objects from here: the product has no switch for it. Prints ``ready`` when it owns partitions.

``POINT@MOMENT`` is the first time that the outcome of a child is there at that point: ``sent`` by the child's owner, or
``heard`` by the parent's.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rig_app import make_app
from rig_services import FAST

from ductor_stream.cli.hangs import DeadMansSwitch
from ductor_stream.config import Settings
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.events import ChildFinished
from ductor_stream.engine.state import decode_records
from ductor_stream.errors import OwnershipLost
from ductor_stream.ports import Batch, InboxRow, Received
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.coordinators import open_coordinator


def die(point: str) -> None:
    """At once, and without a word to anybody."""
    os.write(1, f"dies {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def _outcomes(rows: Sequence[InboxRow]) -> bool:
    """Whether one of them tells a parent how its child has ended."""
    return any(row.source.startswith("told/") for row in rows)


def _heard(batch: Batch) -> bool:
    """Whether a parent hears in it how its child has ended."""
    records = (record for run in batch.runs for record in decode_records(run.entry))
    return any(isinstance(record.event, ChildFinished) for record in records)


class Moment(NamedTuple):
    """Which records in hand, rows in hand and batches matter."""

    records: Callable[[Sequence[Received]], bool]
    rows: Callable[[Sequence[InboxRow]], bool]
    batch: Callable[[Batch], bool]


MOMENTS = {
    "": Moment(bool, lambda rows: False, lambda batch: bool(batch.runs)),
    # The children that die with this one wait for a word.
    "sent": Moment(
        lambda records: any(b"run.signal" in (record.value or b"") for record in records),
        lambda rows: False,
        lambda batch: _outcomes(batch.inbox),
    ),
    "heard": Moment(lambda records: False, _outcomes, _heard),
}


class Fuse:
    """Burns down by one with each batch that matters, then kills."""

    def __init__(self, point: str, moment: str = "") -> None:
        self.point, self.matters = point, MOMENTS[moment]
        self.left = 1 if moment else 3

    def burn(self, matters: object) -> bool:
        """Whether it is time to die."""
        self.left -= bool(matters)
        return bool(matters) and self.left <= 0


def after_consume(coordinator: Coordinator, fuse: Fuse) -> None:
    """Records or rows are in hand, nothing was done with them."""
    poll, inbox = coordinator.log.poll, coordinator.store.inbox

    def polled(timeout: float, limit: int) -> list[Received]:
        records = poll(timeout, limit)
        if fuse.burn(fuse.matters.records(records)):
            die(fuse.point)
        return records

    def read(partition: int, limit: int, now: int) -> list[InboxRow]:
        rows = inbox(partition, limit, now)
        if fuse.burn(fuse.matters.rows(rows)):
            die(fuse.point)
        return rows

    coordinator.log.poll = polled  # type: ignore[method-assign]
    coordinator.store.inbox = read  # type: ignore[method-assign]


def after_tick(coordinator: Coordinator, fuse: Fuse) -> None:
    """Decided, not committed."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.burn(fuse.matters.batch(prepared.batch)):
            die(fuse.point)
        return commit(prepared)

    coordinator.commit = wrapped  # type: ignore[method-assign]


def after_commit(coordinator: Coordinator, fuse: Fuse) -> None:
    """Committed; nobody has been told, not even this process."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        now = commit(prepared)
        if fuse.burn(fuse.matters.batch(prepared.batch)):
            die(fuse.point)
        return now

    coordinator.commit = wrapped  # type: ignore[method-assign]


def mid_dispatch(coordinator: Coordinator, fuse: Fuse) -> None:
    """Half of the records have arrived, the other half was never produced."""
    produce, dispatch = coordinator.log.produce, coordinator.dispatch
    under_way = False

    def wrapped(records: Any, acknowledged: Any) -> None:
        if fuse.burn(under_way and len(records) > 1):
            produce(records[: len(records) // 2], lambda failed: None)
            coordinator.log.flush(10)
            die(fuse.point)
        produce(records, acknowledged)

    def dispatched(prepared: Any) -> None:
        nonlocal under_way
        under_way = fuse.matters.batch(prepared.batch)
        dispatch(prepared)
        under_way = False

    coordinator.log.produce = wrapped  # type: ignore[method-assign]
    coordinator.dispatch = dispatched  # type: ignore[method-assign]


def after_dispatch(coordinator: Coordinator, fuse: Fuse) -> None:
    """All has arrived, and no commit has recorded that."""
    dispatch = coordinator.dispatch

    def wrapped(prepared: Any) -> None:
        dispatch(prepared)
        if fuse.burn(fuse.matters.batch(prepared.batch)):
            coordinator.log.flush(10)
            die(fuse.point)

    coordinator.dispatch = wrapped  # type: ignore[method-assign]


def before_inbox(coordinator: Coordinator, fuse: Fuse) -> None:
    """Events were sent home as rows, and their sources passed; none of them was applied."""
    inbox = coordinator.store.inbox

    def wrapped(partition: int, limit: int, now: int) -> Any:
        rows = inbox(partition, limit, now)
        if fuse.burn(rows):
            die(fuse.point)
        return [] if fuse.left > 0 else rows

    coordinator.store.inbox = wrapped  # type: ignore[method-assign]


def freeze(point: str) -> None:
    """Stand still, as a paused virtual machine does, until SIGCONT."""
    os.write(1, f"freezes {point}\n".encode())
    os.kill(os.getpid(), signal.SIGSTOP)


def frozen_before_commit(coordinator: Coordinator, fuse: Fuse) -> None:
    """With a batch in hand that is committed when it wakes; refused, it freezes once more before it does anything else.

    All that earlier batches have produced has arrived: nothing of it comes when it wakes.
    """
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if not fuse.burn(prepared.batch.runs):
            return commit(prepared)
        coordinator.log.flush(10)
        freeze(fuse.point)
        fuse.left = 1 << 62
        try:
            return commit(prepared)
        except OwnershipLost:
            freeze("refused")
            raise

    coordinator.commit = wrapped  # type: ignore[method-assign]


def frozen_in_transaction(coordinator: Coordinator, fuse: Fuse) -> None:
    """With the rows of its partition and its runs locked."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.burn(prepared.batch.runs):
            coordinator.store.lock([run.run_id for run in prepared.batch.runs])
            freeze(fuse.point)
            fuse.left = 1 << 62
        return commit(prepared)

    coordinator.commit = wrapped  # type: ignore[method-assign]


def after_command(coordinator: Coordinator, fuse: Fuse) -> None:
    """The first order of its kind is committed; nobody has been told what is to be done about it."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        now = commit(prepared)
        if any(row.kind == "command" and fuse.point == f"after-{row.name}" for row in prepared.batch.messages):
            die(fuse.point)
        return now

    coordinator.commit = wrapped  # type: ignore[method-assign]


def frozen_with_a_start(coordinator: Coordinator, fuse: Fuse) -> None:
    """With a batch in hand that begins a run, which is committed when it wakes."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.left > 0 and any(run.expected == 0 for run in prepared.batch.runs):
            fuse.left = 0
            freeze(fuse.point)
        return commit(prepared)

    coordinator.commit = wrapped  # type: ignore[method-assign]


POINTS: dict[str, Callable[[Coordinator, Fuse], None]] = {
    "after-consume": after_consume,
    "after-tick": after_tick,
    "after-commit": after_commit,
    "mid-dispatch": mid_dispatch,
    "after-dispatch": after_dispatch,
}
"""Between every two steps of a batch."""


def ended_when_it_hangs(coordinator: Coordinator, fuse: Fuse) -> None:
    """As ``ductor-stream serve`` ends a process whose workflow code hangs, sooner."""
    switch = DeadMansSwitch(2.0)

    def hold() -> None:
        waiting = threading.Event()
        while True:
            switch.hold(coordinator.readiness.ticking_for())
            waiting.wait(0.1)

    threading.Thread(target=hold, daemon=True).start()


def little_memory(coordinator: Coordinator, fuse: Fuse) -> None:
    """Half a gigabyte more than it has now, as a container's limit would be if Linux refused instead of killing."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 29)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


OTHERS: dict[str, Callable[[Coordinator, Fuse], None]] = {
    "hang": ended_when_it_hangs,
    "little-memory": little_memory,
    "before-inbox": before_inbox,
    "after-cancel": after_command,
    "after-terminate": after_command,
    "freeze-with-a-start": frozen_with_a_start,
    "freeze-before-commit": frozen_before_commit,
    "freeze-in-transaction": frozen_in_transaction,
}


def main(bootstrap: str, database: str, namespace: str, instance: str, point: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = Settings(
        kafka_bootstrap=bootstrap,
        kafka_instance_id=instance if instance != "-" else None,
        kafka={"fetch.wait.max.ms": "20"},
        database_url=database,
    )
    coordinator = open_coordinator(make_app(namespace), settings, Metrics(), config=FAST)
    if point != "none":
        name, _, moment = point.partition("@")
        (POINTS | OTHERS)[name](coordinator, Fuse(name, moment))

    def tell() -> None:
        waiting = threading.Event()
        while not coordinator.ownership.owned or coordinator.readiness.reasons():
            waiting.wait(0.02)
        os.write(1, b"ready\n")

    threading.Thread(target=tell, daemon=True).start()
    coordinator.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
