"""What the reader returns: frozen values, times in ms since 1970 UTC, user values as JSON bytes."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.state import Header, Record, decode_header


class RunRow(msgspec.Struct, frozen=True):
    """A run as its row has it. Times are ms since 1970 UTC; ``result`` and ``error`` are JSON."""

    run_id: str
    workflow: str
    version: str
    status: str
    reason: str
    execution: int
    record_version: int
    partition: int
    wake_at: int | None
    started_at: int
    updated_at: int
    closed_at: int | None
    result: bytes | None
    error: bytes | None
    state: bytes

    @property
    def header(self) -> Header:
        """The decoded header. Raises UnknownFormat when a newer release wrote it."""
        return decode_header(self.state)


class AttemptLine(msgspec.Struct, frozen=True):
    """An attempt from dispatch to result. Times are ms; ``error`` is JSON; ``late_*`` is a result that came too late."""

    execution: int
    node_id: str
    generation: int
    attempt: int
    step: str
    queue: str
    dispatched_at: int
    finished_at: int | None
    outcome: str | None
    worker: str | None
    error: bytes | None
    late_at: int | None
    late_outcome: str | None


class Beat(msgspec.Struct, frozen=True):
    """What was heard of an attempt in flight. Times are ms, ``details`` is JSON."""

    execution: int
    node_id: str
    generation: int
    heard_at: int
    beat_at: int
    worker: str
    details: bytes | None


class PutOff(msgspec.Struct, frozen=True):
    """Inputs of a run that wait in the inbox: how many, how often one of them has lost its version check at most, and until
    when the last of them waits (ms; None: until its partition's inbox is read again)."""

    inputs: int
    tries: int
    until: int | None


class HistoryEntry(msgspec.Struct, frozen=True):
    """One transition: the commit that wrote it (``epoch``, ``txid``), its time in ms, and the records in it."""

    record_version: int
    execution: int
    at: int
    epoch: int
    txid: int
    records: list[Record]


class OpenRun(msgspec.Struct, frozen=True):
    """An open run, and the code that it needs."""

    run_id: str
    workflow: str
    version: str


class OpenVersion(msgspec.Struct, frozen=True):
    """How many open runs of a workflow's version are in one status, and since when (ms) the oldest is open."""

    workflow: str
    version: str
    status: str
    runs: int
    oldest_at: int


class Declared(msgspec.Struct, frozen=True):
    """Code that was served for a workflow's version: its digest, and when (ms) it first was."""

    workflow: str
    version: str
    digest: str
    declared_at: int


class Offence(msgspec.Struct, frozen=True):
    """What a check found against a run."""

    check: str
    run_id: str


class ConsistencyReport(msgspec.Struct, frozen=True):
    """Whether a namespace kept its promises, computed from its rows (R3, R5b, R6, R8)."""

    runs: int
    open_runs: int
    transitions: int
    attempts: int
    late_results: int
    lost: list[str]
    """Runs that should be there and are not; runs of which only transitions are there."""
    advanced_twice: list[Offence]

    @property
    def ok(self) -> bool:
        """Whether no run was lost and none advanced twice."""
        return not self.lost and not self.advanced_twice
