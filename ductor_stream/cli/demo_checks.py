"""What the demo proves at its end, computed from Postgres alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg

from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.state import CLOSED, NodeCreated, Record, decode_records

_COUNTS = """
select r.status, count(*)
  from eec_workflow_run r join eec_namespace n using (ns)
 where n.name = %s
 group by r.status
"""
_STEPS = """
select count(*) filter (where phase = 'finished' and outcome = 'completed'),
       count(*) filter (where phase = 'finished' and outcome = 'failed'),
       count(*) filter (where phase = 'late')
  from eec_workflow_step_attempt a join eec_namespace n using (ns)
 where n.name = %s
"""
_LATENCY = """
select percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from r.closed_at - r.started_at))
  from eec_workflow_run r join eec_namespace n using (ns)
 where n.name = %s and r.closed_at is not null
"""
_RUNS = """
select r.run_id, r.status, r.record_version
  from eec_workflow_run r join eec_namespace n using (ns)
 where n.name = %s
"""
_TRANSITIONS = """
select t.run_id, t.record_version, t.epoch, t.txid::text, t.records
  from eec_workflow_transition t join eec_namespace n using (ns)
 where n.name = %s
 order by t.run_id, t.record_version
"""
_SHOWN = 3
"""Faults that are shown in full; a broken engine would have hundreds of the same kind."""


class Progress(msgspec.Struct, frozen=True):
    """Counts as they stand now: runs by status, attempts by outcome."""

    statuses: dict[str, int]
    steps: int = 0
    failed_attempts: int = 0
    late_results: int = 0

    @property
    def known(self) -> int:
        """Runs that Postgres knows."""
        return sum(self.statuses.values())

    @property
    def closed(self) -> int:
        """Runs that have ended, in whatever way."""
        return sum(count for status, count in self.statuses.items() if status in CLOSED)

    @property
    def completed(self) -> int:
        """Runs that ended with a result."""
        return self.statuses.get("completed", 0)


class Latency(msgspec.Struct, frozen=True):
    """From a run's start to its end, in seconds."""

    p50: float | None
    p99: float | None


class Check(msgspec.Struct, frozen=True):
    """A claim, and what speaks against it."""

    claim: str
    faults: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.faults


def progress(connection: psycopg.Connection[Any], namespace: str) -> Progress:
    """The counts of a namespace."""
    statuses = dict(connection.execute(_COUNTS, (namespace,)).fetchall())
    row = connection.execute(_STEPS, (namespace,)).fetchone()
    return Progress(statuses, *(row or ()))


def latency(connection: psycopg.Connection[Any], namespace: str) -> Latency:
    """Median and 99th percentile over all runs that have ended."""
    row = connection.execute(_LATENCY, (namespace,)).fetchone()
    return Latency(*row[0]) if row is not None and row[0] is not None else Latency(None, None)


def checks(connection: psycopg.Connection[Any], namespace: str, expected: Sequence[str]) -> list[Check]:
    """The two claims: every order that was produced has a completed run, and none went through anything twice."""
    runs = {run_id: (status, version) for run_id, status, version in connection.execute(_RUNS, (namespace,))}
    return [
        Check("no run lost", list(lost(runs, expected))),
        Check("no run advanced twice", list(_doubled(connection, namespace, runs))),
    ]


def lost(runs: dict[str, tuple[str, int]], expected: Sequence[str]) -> Iterator[str]:
    """Ordered runs that are not completed, and runs that nobody ordered. ``runs``: (status, record_version) by id."""
    for run_id in expected:
        status, _ = runs.get(run_id, ("unknown to Postgres", 0))
        if status != "completed":
            yield f"{run_id} is {status}"
    yield from (f"{run_id} was never ordered" for run_id in sorted(runs.keys() - set(expected)))


def _doubled(connection: psycopg.Connection[Any], namespace: str, runs: dict[str, tuple[str, int]]) -> Iterator[str]:
    histories: dict[str, list[tuple[int, int, str, list[Record]]]] = {run_id: [] for run_id in runs}
    for run_id, version, epoch, txid, raw in connection.execute(_TRANSITIONS, (namespace,)):
        histories.setdefault(run_id, []).append((version, epoch, txid, decode_records(raw)))
    for run_id, commits in histories.items():
        yield from (f"{run_id}: {fault}" for fault in faults_of(commits, runs.get(run_id, ("", 0))[1]))


def faults_of(commits: list[tuple[int, int, str, list[Record]]], record_version: int) -> Iterator[str]:
    """What a run's history must never show: a version missing or written twice, an older owner after a newer one,
    an event applied twice, a result accepted twice for one generation, two results for one node."""
    versions = [version for version, _, _, _ in commits]
    if versions != list(range(1, record_version + 1)):
        yield f"its row has record_version {record_version}, its history has {_short(versions)}"
    if len({txid for _, _, txid, _ in commits}) != len(commits):
        yield "one transaction wrote two of its versions"
    epochs = [epoch for _, epoch, _, _ in commits]
    if epochs != sorted(epochs):
        yield f"an older owner committed after a newer one: epochs {_short(epochs)}"
    records = [record for _, _, _, found in commits for record in found]
    order = [(record.execution, record.seq) for record in records]
    if order != sorted(set(order)):
        yield "an event was applied twice or out of order"
    yield from repeated(records)


def repeated(records: list[Record]) -> Iterator[str]:
    """Results accepted twice, and nodes created twice, in the records of one run."""
    reports = [record.event for record in records if isinstance(record.event, AttemptFinished)]
    fences = Counter((report.execution, report.node_id, report.generation) for report in reports)
    yield from (f"node {node}: generation {g} has {n} results" for (_, node, g), n in fences.items() if n > 1)
    results = Counter((report.execution, report.node_id) for report in reports if report.outcome == "completed")
    yield from (f"node {node} completed {n} times" for (_, node), n in results.items() if n > 1)
    created = Counter(
        (record.execution, decision.node_id)
        for record in records
        for decision in record.decisions or ()
        if isinstance(decision, NodeCreated)
    )
    yield from (f"node {node} was created {n} times" for (_, node), n in created.items() if n > 1)


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 12 else f"{numbers[:6]}…{numbers[-6:]}"


def shown(check: Check) -> str:
    """A check's outcome for the final table."""
    if check.holds:
        return "holds"
    more = f" and {len(check.faults) - _SHOWN} more" if len(check.faults) > _SHOWN else ""
    return "; ".join(check.faults[:_SHOWN]) + more
