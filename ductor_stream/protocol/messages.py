"""The messages of the wire contract as structs: one per type, the same for JSON and Avro.

``ABSENT`` stands for a user value that is missing. Field order is the order in
which JSON is written; what can be left out is left out of requests and results, and is spelt out in tasks. Null is the same as missing in every
optional field, since many languages write it for what they do not have.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from ductor_stream.engine.events import AttemptOutcome, OnConflict
from ductor_stream.protocol.limits import MAX_DURATION_MS, MAX_ID_BYTES, MAX_NUMBER
from ductor_stream.protocol.topics import NAME_PATTERN

ABSENT = Raw()
"""No user value. It is left out only where it is this very object: an empty ``Raw`` of one's own would be written."""

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
Number = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Duration = Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)]


def carried(value: bytes | None) -> Raw:
    """A user value to be written, ``ABSENT`` for none."""
    return Raw(value) if value else ABSENT


class WireMessage(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all messages. ``run_id`` is None where the key alone says it."""

    run_id: str | None = None


# -- run-events -----------------------------------------------------------------------------


class RunStart(WireMessage, frozen=True, tag="run.start", kw_only=True, omit_defaults=True):
    """Start a run."""

    workflow: Name
    input: Raw = ABSENT
    start_id: Id | None = None
    version: Name | None = None
    on_conflict: OnConflict | None = None
    run_timeout_ms: Duration | None = None
    memo: Raw = ABSENT
    search: Raw = ABSENT


class RunSignal(WireMessage, frozen=True, tag="run.signal", kw_only=True, omit_defaults=True):
    """Hand a payload to a run."""

    signal_id: Id | None = None
    name: Name
    payload: Raw = ABSENT


class Command(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the orders to a run."""

    command_id: Id | None = None
    reason: str | None = None


class RunCancel(Command, frozen=True, tag="run.cancel", kw_only=True, omit_defaults=True):
    """The run is to end by itself, with its cleanup."""


class RunTerminate(Command, frozen=True, tag="run.terminate", kw_only=True, omit_defaults=True):
    """End the run at once."""


class RunPause(Command, frozen=True, tag="run.pause", kw_only=True, omit_defaults=True):
    """Decide nothing more until resumed."""


class RunResume(Command, frozen=True, tag="run.resume", kw_only=True, omit_defaults=True):
    """Go on after a pause or a suspension."""


class RunRetry(Command, frozen=True, tag="run.retry", kw_only=True, omit_defaults=True):
    """Try again what a closed run failed at."""


class RunReset(Command, frozen=True, tag="run.reset", kw_only=True, omit_defaults=True):
    """Go back to a node, or to a transition, and run on from there. One of them is required."""

    to_node: Id | None = None
    to_transition: Number | None = None


# -- tasks and attempts ---------------------------------------------------------------------


class Attempt(WireMessage, frozen=True, kw_only=True):
    """Base of what is about one attempt; with the run id, its fence."""

    execution: Number
    node_id: Id
    generation: Number


class Task(Attempt, frozen=True, tag="task", kw_only=True):
    """One attempt of one step, to be run by a worker. Durations in ms, times RFC 3339."""

    attempt: Number
    step: Name
    input: Raw = Raw(b"null")
    idempotency_key: str = ""
    dispatched_at: str | None = None
    start_to_close_ms: Duration | None = None
    schedule_to_start_ms: Duration | None = None
    deadline_at: str | None = None
    heartbeat_timeout_ms: Duration = 10_000
    heartbeat_details: Raw = Raw(b"null")
    requires: tuple[str, ...] = ()
    results_topic: str = ""


class WireError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt or a run failed."""

    code: str | None = None
    type: str | None = None
    message: str | None = None
    retryable: bool | None = None
    retry_after_ms: Duration | None = None
    details: Raw = ABSENT
    stack: str | None = None


class AttemptFinished(Attempt, frozen=True, tag="attempt.finished", kw_only=True, omit_defaults=True):
    """The outcome of an attempt."""

    outcome: AttemptOutcome
    output: Raw = ABSENT
    error: WireError | None = None
    worker: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class AttemptHeartbeat(Attempt, frozen=True, tag="attempt.heartbeat", kw_only=True, omit_defaults=True):
    """The attempt is alive."""

    started_at: str | None = None
    worker: str | None = None
    details: Raw = ABSENT


class AttemptStop(Attempt, frozen=True, tag="attempt.stop", kw_only=True, omit_defaults=True):
    """The attempt is no longer wanted."""

    reason: str | None = None


class Wakeup(WireMessage, frozen=True, tag="wakeup", kw_only=True):
    """Look into the inbox of this run's partition."""


COMMANDS = (RunCancel, RunTerminate, RunPause, RunResume, RunRetry, RunReset)
BY_TOPIC: dict[str, tuple[type[WireMessage], ...]] = {
    "run-events": (RunStart, RunSignal, *COMMANDS),
    "attempt-results": (AttemptFinished, AttemptHeartbeat),
    "wakeups": (Wakeup,),
    "attempt-control": (AttemptStop,),
    "tasks": (Task,),
}
"""Which messages are valid on which topic."""


def type_of(message: type[WireMessage] | WireMessage) -> str:
    """The word in ``type``."""
    tag = message.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
