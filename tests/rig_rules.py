"""What must hold in Postgres whatever happened: read by SQL alone, as somebody else would check it."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from support import until

_CHECKS = {
    "R3/R6: record_versions not dense, or not the run's": """
        select r.run_id from runs r left join lateral (
            select count(*) n, min(record_version) lo, max(record_version) hi from eec_workflow_transition t
             where t.ns = r.ns and t.run_id = r.run_id) t on true
          left join eec_workflow_summary s on s.ns = r.ns and s.run_id = r.run_id
         where (t.n + coalesce(s.upto, 0), t.lo, t.hi)
               is distinct from (r.record_version, coalesce(s.upto, 0) + 1, r.record_version)""",
    "R3: two transitions of a run from one commit, or one of an older epoch after a newer": """
        select distinct run_id from (
            select t.run_id, lag(t.txid) over w as tx, t.txid, lag(t.epoch) over w as ep, t.epoch
              from eec_workflow_transition t join runs r using (ns, run_id)
            window w as (partition by t.run_id order by t.record_version)) t
         where txid <= tx or epoch < ep""",
    "R6: a node with two accepted results": """
        select a.run_id from eec_workflow_step_attempt a join runs using (ns, run_id)
         where a.phase = 'finished' and a.outcome = 'completed'
         group by a.run_id, a.execution, node_id having count(*) > 1""",
    "R4: an attempt finished that was never dispatched": """
        select a.run_id from eec_workflow_step_attempt a join runs using (ns, run_id)
         where a.phase = 'finished' and not exists (
            select from eec_workflow_step_attempt d where (d.ns, d.run_id, d.execution, d.node_id, d.generation, d.phase)
                = (a.ns, a.run_id, a.execution, a.node_id, a.generation, 'dispatched'))""",
    "open and closed mixed up": """
        select run_id from runs
         where (closed_at is null) <> (status in ('running', 'suspended', 'paused'))
            or (status = 'completed') <> (result is not null) or (closed_at is not null and wake_at is not null)
            or (status in ('failed', 'timed_out')) and error is null""",
    "a closed run with an open attempt": """
        select o.run_id from eec_open_attempt o join runs using (ns, run_id) where runs.closed_at is not null""",
    "a signal still buffered though its run is there": """
        select s.run_id from eec_workflow_signal s join runs using (ns, run_id) where s.body is not null""",
    "counters do not count": """
        select coalesce(c.workflow, r.workflow) from
            (select workflow, status, sum(count) n from eec_counter where ns = %(ns)s group by 1, 2 having sum(count) <> 0) c
            full join (select workflow, status, count(*) n from all_runs group by 1, 2) r
              on (c.workflow, c.status) = (r.workflow, r.status)
         where c.n is distinct from r.n""",
}

_AT_REST = {
    "the outbox is not empty": "select partition::text from eec_outbox where ns = %(ns)s",
    "the inbox is not empty": "select source from eec_inbox where ns = %(ns)s and partition >= 0",
}


def rule_breaks(database: str, namespace: str, but: Iterable[str] = (), *, at_rest: bool = True) -> list[str]:
    """Every broken rule with the runs that break it. ``but`` are runs whose rows the test itself has touched."""
    found: list[str] = []
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute("select ns from eec_namespace where name = %s", (namespace,)).fetchone()
        assert row is not None, f"no namespace {namespace}"
        params = {"ns": row[0], "but": list(but)}
        for name, query in {**_CHECKS, **(_AT_REST if at_rest else {})}.items():
            rows = connection.execute(
                "with all_runs as (select * from eec_workflow_run where ns = %(ns)s),"  # type: ignore[arg-type]
                " runs as (select * from all_runs where run_id <> all(%(but)s)) " + query,
                params,
            ).fetchall()
            if rows:
                found.append(f"{name}: {sorted({str(r[0]) for r in rows})[:5]}")
    return found


def check_rules(database: str, namespace: str, but: Iterable[str] = (), *, within_ms: float = 10_000) -> None:
    """The rules hold, and nothing is left to send once all is at rest (confirmations take a moment)."""
    assert rule_breaks(database, namespace, but, at_rest=False) == []
    but = list(but)
    until(lambda: not _shown(rule_breaks(database, namespace, but)), within_ms=within_ms, what="rest")


def _shown(breaks: list[str]) -> list[str]:
    assert breaks == []
    return breaks
