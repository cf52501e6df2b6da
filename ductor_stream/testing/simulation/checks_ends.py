"""R9 in the simulation: what begins has an end, at its time, and everybody is told."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.events import Continued, TimerFired
from ductor_stream.engine.state import CancelRequested, decode_header, decode_records
from ductor_stream.ports import Batch
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.checks import Checker, state_of
from ductor_stream.testing.simulation.memory_broker import Kept, Topic
from ductor_stream.testing.simulation.memory_database import Database

LATEST_MS = 30_000
"""How late a timer may be in calm weather: time enough to take the partitions."""


class R9NoSilentHang(Checker):
    """Every run has ended, and everybody could see each turn of its life."""

    rule = "R9"

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._seen: dict[str, set[int]] = {}

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        if topic.name == self._topics.run_lifecycle:
            data = msgspec.json.decode(record.value or b"{}")
            self._seen.setdefault(data["run_id"], set()).add(data["seq"])

    def finish(self, database: Database) -> None:
        for run_id, run in database.runs.items():
            header = decode_header(run.header or b"")
            missing = set(range(1, header.lifecycle_seq + 1)) - self._seen.get(run_id, set())
            if missing:
                raise self.broken(f"{run_id}: lifecycle events {sorted(missing)} of {header.lifecycle_seq} never came")


class R9CancelIsTold(Checker):
    """A cancel that an execution hands on to the next one waits there to be told."""

    rule = "R9"

    def committed(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            event = decode_records(run.entry)[-1].event
            if not isinstance(event, Continued) or not event.cancel_requested or run.closed_at is not None:
                continue
            state = state_of(database, run.run_id)
            if state is None or not any(isinstance(held.fact, CancelRequested) for held in state.held):
                raise self.broken(f"{run.run_id}: its next execution will never hear that it was cancelled")


class R9TimersInTime(Checker):
    """In calm weather a timer fires when it is due, and not when its owner happens to look again.

    ``calm_since`` (ms) is None in a storm; what came due before it may be late.
    """

    rule = "R9"

    def __init__(self) -> None:
        self.calm_since: int | None = None

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        if self.calm_since is None:
            return
        for run in batch.runs:
            before = database.runs.get(run.run_id)
            if before is None or before.wake_at is None:
                continue
            due = max(before.wake_at, self.calm_since)
            for record in decode_records(run.entry):
                if isinstance(record.event, TimerFired) and record.now > due + LATEST_MS:
                    raise self.broken(f"{run.run_id}: a timer was {(record.now - due) / 1000:.0f} s late")
