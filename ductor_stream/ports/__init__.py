"""The small ports through which the services see the outside: a store, a log, a clock, local workers.

The same coordinator runs against Postgres and Kafka, and against memory in tests. Values
here are plain and frozen; adapters in ``store`` and ``kafka`` implement the protocols.
"""

from __future__ import annotations

from ductor_stream.ports.log import (
    INBOUND,
    UNREAD,
    Acknowledged,
    EventLog,
    Inbound,
    LostRange,
    Outgoing,
    Ownership,
    Received,
    TaskPlace,
    TaskStand,
    Undeliverable,
)
from ductor_stream.ports.process import Clock, LocalWorkers
from ductor_stream.ports.store import (
    UNBOUNDED,
    AttemptRow,
    Batch,
    BufferedMessage,
    Foldable,
    Folded,
    InboxRow,
    LoadedRun,
    MessageRow,
    Namespace,
    OpenAttempt,
    PartitionAdvance,
    RunStore,
    RunWrite,
    Taken,
)
from ductor_stream.ports.tasks import Delivered, TaskLog, TaskOwnership, TaskPosition, TaskRecord, TaskSource

__all__ = [
    "INBOUND",
    "UNBOUNDED",
    "UNREAD",
    "Acknowledged",
    "AttemptRow",
    "Batch",
    "BufferedMessage",
    "Clock",
    "Delivered",
    "EventLog",
    "Foldable",
    "Folded",
    "Inbound",
    "InboxRow",
    "LoadedRun",
    "LocalWorkers",
    "LostRange",
    "MessageRow",
    "Namespace",
    "OpenAttempt",
    "Outgoing",
    "Ownership",
    "PartitionAdvance",
    "Received",
    "RunStore",
    "RunWrite",
    "Taken",
    "TaskLog",
    "TaskOwnership",
    "TaskPlace",
    "TaskPosition",
    "TaskRecord",
    "TaskSource",
    "TaskStand",
    "Undeliverable",
]
