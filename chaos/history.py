"""What is known when all is over: the recorders' lines and Postgres's rows, as plain values for the checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg.rows import class_row

from chaos.load import Lost
from chaos.records import recorded
from ductor_stream.engine.state import Record, decode_records


@dataclass(frozen=True)
class RunRow:
    """A run as Postgres has it. ``folded`` is the last version that was folded into its summary (0: none)."""

    run_id: str
    workflow: str
    status: str
    reason: str
    execution: int
    record_version: int
    closed_at: float | None
    result: bytes | None
    folded: int


@dataclass(frozen=True)
class Commit:
    """One transition: the events of one commit of one run. ``at`` is when it landed, by Postgres's wall clock."""

    run_id: str
    version: int
    epoch: int
    txid: int
    at: float | None
    partition: int
    raw: bytes

    @property
    def records(self) -> list[Record]:
        """What it brought."""
        return decode_records(self.raw)


@dataclass(frozen=True)
class AttemptRow:
    """A row of an attempt: ``dispatched``, ``finished`` or ``late``."""

    run_id: str
    execution: int
    node_id: str
    generation: int
    phase: str
    attempt: int
    at: float


@dataclass(frozen=True)
class Executed:
    """A step was run by a worker, which was about to answer with ``token``."""

    at: float
    run: str
    execution: int
    node: str
    generation: int
    attempt: int
    key: str
    token: str


@dataclass
class Sent:
    """A client's message: where the broker said that it stands (incarnation of the topic, partition, offset)."""

    id: str
    run: str
    type: str
    first_at: float
    tries: int = 0
    places: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class History:
    """Everything. ``rest`` is what should be empty when all is at rest, by table."""

    runs: dict[str, RunRow] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    applied: set[tuple[str, str]] = field(default_factory=set)
    """Ids of signals, commands and starts that were applied, with their runs."""
    rest: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    wanted: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Runs that clients have asked for: their kind, and their plan."""
    sent: dict[str, Sent] = field(default_factory=dict)
    executed: list[Executed] = field(default_factory=list)
    lifecycle: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    fallen: list[dict[str, Any]] = field(default_factory=list)
    """Processes that ended by themselves."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Everything else that was recorded, in its order: faults, starts and ends of processes."""


_RUNS = """
select r.run_id, r.workflow, r.status, r.reason, r.execution, r.record_version,
       extract(epoch from r.closed_at)::float8 as closed_at, r.result, coalesce(s.upto, 0) as folded
  from eec_workflow_run r join eec_namespace n using (ns)
  left join eec_workflow_summary s on (s.ns, s.run_id) = (r.ns, r.run_id)
 where n.name = %s
"""
_COMMITS = """
select t.run_id, t.record_version as version, t.epoch, (t.txid::text)::bigint as txid, r.partition, t.records as raw,
       extract(epoch from pg_xact_commit_timestamp((t.txid::text::bigint %% 4294967296)::text::xid))::float8 as at
  from eec_workflow_transition t join eec_workflow_run r using (ns, run_id) join eec_namespace n using (ns)
 where n.name = %s
 order by t.run_id, t.record_version
"""
_ATTEMPTS = """
select a.run_id, a.execution, a.node_id, a.generation, a.phase, a.attempt, extract(epoch from a.at)::float8 as at
  from eec_workflow_step_attempt a join eec_namespace n using (ns)
 where n.name = %s
"""
_APPLIED = """
select s.run_id, s.id from eec_workflow_signal s join eec_namespace n using (ns) where n.name = %s and s.body is null
"""
_REST = """
select 'outbox', count(*) from eec_outbox join eec_namespace using (ns) where name = %(name)s
union all select 'inbox', count(*) from eec_inbox join eec_namespace using (ns) where name = %(name)s and partition >= 0
union all select 'open attempts of closed runs', count(*)
  from eec_open_attempt o join eec_workflow_run r using (ns, run_id) join eec_namespace n using (ns)
 where n.name = %(name)s and r.closed_at is not null
union all select 'buffered signals of runs that are there', count(*)
  from eec_workflow_signal s join eec_workflow_run r using (ns, run_id) join eec_namespace n using (ns)
 where n.name = %(name)s and s.body is not null
"""
_COUNTERS = """
select workflow, status, sum(count) from eec_counter join eec_namespace using (ns) where name = %s group by 1, 2
"""


def gathered(records: Path, database: str, namespace: str) -> History:
    """Read all of it."""
    found = History()
    _read_records(found, recorded(records))
    with psycopg.connect(database) as connection:
        # As of one moment: where a run never came to rest, its row and its history must not be told apart by that.
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        name = (namespace,)
        with connection.cursor(row_factory=class_row(RunRow)) as cursor:
            found.runs = {row.run_id: row for row in cursor.execute(_RUNS, name)}
        with connection.cursor(row_factory=class_row(Commit)) as cursor:
            found.commits = list(cursor.execute(_COMMITS, name))
        with connection.cursor(row_factory=class_row(AttemptRow)) as cursor:
            found.attempts = list(cursor.execute(_ATTEMPTS, name))
        found.applied = set(connection.execute(_APPLIED, name).fetchall())
        found.rest = dict(connection.execute(_REST, {"name": namespace}).fetchall())
        found.counters = {(w, s): int(n) for w, s, n in connection.execute(_COUNTERS, name) if n}
    return found


def _read_records(found: History, lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        match line["what"]:
            case "executed":
                found.executed.append(msgspec.convert(line, Executed))
            case "run":
                found.wanted[line["run"]] = (line["kind"], line["plan"])
            case "sent":
                sent = found.sent.setdefault(line["id"], Sent(line["id"], line["run"], line["type"], line["at"]))
                sent.tries += 1
            case "acked":
                found.sent[line["id"]].places.append((line["incarnation"], line["partition"], line["offset"]))
            case "lifecycle":
                found.lifecycle.append(line)
            case "letter":
                found.letters.append(line)
            case "lost":
                found.lost.append(msgspec.convert(line, Lost))
            case "fell":
                found.fallen.append(line)
                found.lines.append(line)
            case _:
                found.lines.append(line)
    found.lines.sort(key=lambda line: float(line["at"]))
