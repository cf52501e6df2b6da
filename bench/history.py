"""What Postgres knows of the measured runs, by its own clock: when each commit became durable, and that it did.

``eec_workflow_transition`` has a row per commit and run, with the transaction that wrote it; ``track_commit_timestamp``
tells when that was committed.
"""

from __future__ import annotations

from typing import Any

import psycopg

_CHECKED_RUNS = 2_000
"""So many of the runs that ended last are looked at: more would take longer than the measurement."""


def _ask(database: str, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(query, params).fetchall()


def check_chains(database: str, steps: int, workflow: str = "chain") -> None:
    """Each completed chain took one commit for its start and one for each result: durable before the next step.

    Raises AssertionError with a run for which that is not so.
    """
    query = """
        select r.run_id, count(*), count(distinct t.txid)
          from (select ns, run_id from eec_workflow_run where status = 'completed' and workflow = %s
                 order by closed_at desc limit %s) r
          join eec_workflow_transition t using (ns, run_id)
         group by r.run_id having count(*) <> %s or count(distinct t.txid) <> count(*) limit 1
    """
    odd = _ask(database, query, workflow, _CHECKED_RUNS, steps + 1)
    assert not odd, f"run {odd[0][0]} of {steps} steps has {odd[0][1]} transitions in {odd[0][2]} transactions"


def lateness_s(database: str, prefix: str, due_at: float) -> list[float]:
    """How long after ``due_at`` (seconds since 1970) the end of each completed run of that prefix was committed."""
    query = """
        select extract(epoch from pg_xact_commit_timestamp(t.txid::xid))::float8 - %s
          from eec_workflow_run r join eec_workflow_transition t using (ns, run_id, record_version)
         where starts_with(r.run_id, %s) and r.status = 'completed'
    """
    return [float(late) for (late,) in _ask(database, query, due_at, prefix)]


def commit_times_s(database: str, run_id: str) -> list[float]:
    """When each commit of a run became durable, in order (seconds since 1970)."""
    query = """
        select extract(epoch from pg_xact_commit_timestamp(txid::xid))::float8
          from eec_workflow_transition where run_id = %s order by record_version
    """
    return [float(at) for (at,) in _ask(database, query, run_id)]


def last_start_s(database: str, prefix: str) -> float:
    """When the last start of a run of that prefix was committed (seconds since 1970)."""
    query = """
        select max(extract(epoch from pg_xact_commit_timestamp(txid::xid)))::float8
          from eec_workflow_transition where starts_with(run_id, %s) and record_version = 1
    """
    return float(_ask(database, query, prefix)[0][0])


def started_runs(database: str, prefix: str) -> int:
    """Runs of that prefix that were taken in."""
    return int(_ask(database, "select count(*) from eec_workflow_run where starts_with(run_id, %s)", prefix)[0][0])


def now_s(database: str) -> float:
    """Postgres's clock, seconds since 1970."""
    return float(_ask(database, "select extract(epoch from clock_timestamp())::float8")[0][0])
