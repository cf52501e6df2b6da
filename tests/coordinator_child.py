"""A coordinator process for tests: ``coordinator_child.py BOOTSTRAP DATABASE NAMESPACE INSTANCE POINT``.

It dies by SIGKILL (or freezes by SIGSTOP) at ``POINT``, the third time that its loop comes by there with tasks to dispatch or results to
apply: then there is something before it, something in flight, and something left to do. The points are laid into
the objects from here: the product has no switch for it. Prints ``ready`` when it owns partitions.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig_app import make_app
from rig_services import FAST

from ductor_stream.cli.hangs import DeadMansSwitch
from ductor_stream.config import Settings
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.coordinators import open_coordinator


def die(point: str) -> None:
    """At once, and without a word to anybody."""
    os.write(1, f"dies {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Burns down by one with each batch that matters, then kills."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.left = 3

    def burn(self, matters: object) -> bool:
        """Whether it is time to die."""
        self.left -= bool(matters)
        return bool(matters) and self.left <= 0


def after_consume(coordinator: Coordinator, fuse: Fuse) -> None:
    """Records are in hand, nothing was done with them."""
    poll = coordinator.log.poll

    def wrapped(timeout: float, limit: int) -> Any:
        records = poll(timeout, limit)
        if fuse.burn(records):
            die(fuse.point)
        return records

    coordinator.log.poll = wrapped  # type: ignore[method-assign]


def after_tick(coordinator: Coordinator, fuse: Fuse) -> None:
    """Decided, not committed."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.burn(prepared.batch.runs):
            die(fuse.point)
        return commit(prepared)

    coordinator.commit = wrapped  # type: ignore[method-assign]


def after_commit(coordinator: Coordinator, fuse: Fuse) -> None:
    """Committed; nobody has been told, not even this process."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        now = commit(prepared)
        if fuse.burn(prepared.batch.runs):
            die(fuse.point)
        return now

    coordinator.commit = wrapped  # type: ignore[method-assign]


def mid_dispatch(coordinator: Coordinator, fuse: Fuse) -> None:
    """Half of the records have arrived, the other half was never produced."""
    produce = coordinator.log.produce

    def wrapped(records: Any, acknowledged: Any) -> None:
        if fuse.burn(len(records) > 1):
            produce(records[: len(records) // 2], lambda failed: None)
            coordinator.log.flush(10)
            die(fuse.point)
        produce(records, acknowledged)

    coordinator.log.produce = wrapped  # type: ignore[method-assign]


def after_dispatch(coordinator: Coordinator, fuse: Fuse) -> None:
    """All has arrived, and no commit has recorded that."""
    dispatch = coordinator.dispatch

    def wrapped(prepared: Any) -> None:
        dispatch(prepared)
        if fuse.burn(prepared.batch.runs):
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
    """With a batch in hand that is committed when it wakes."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.burn(prepared.batch.runs):
            freeze(fuse.point)
            fuse.left = 1 << 62
        return commit(prepared)

    coordinator.commit = wrapped  # type: ignore[method-assign]


def frozen_in_transaction(coordinator: Coordinator, fuse: Fuse) -> None:
    """With the rows of its partition and its runs locked."""
    commit = coordinator.commit

    def wrapped(prepared: Any) -> Any:
        if fuse.burn(prepared.batch.runs):
            coordinator.store.lock([run.run_id for run in prepared.batch.runs])
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
        (POINTS | OTHERS)[point](coordinator, Fuse(point))

    def tell() -> None:
        waiting = threading.Event()
        while not coordinator.ownership.owned or coordinator.readiness.reasons():
            waiting.wait(0.02)
        os.write(1, b"ready\n")

    threading.Thread(target=tell, daemon=True).start()
    coordinator.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
