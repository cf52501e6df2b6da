"""Protocol 4, at the owner: Postgres has lost its last commits under a coordinator that has made them and runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from rig import Rig, rule_breaks
from rig_worker import fence
from support import until

IDS = [f"old-{n}" for n in range(6)]


@contextmanager
def remembered(rig: Rig) -> Iterator[Callable[[], None]]:
    """All rows of the namespace as they stand now; call what this gives to put Postgres back there, in one transaction."""
    with psycopg.connect(rig.database) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "select relname from pg_class join pg_attribute on attrelid = pg_class.oid and attname = 'ns'"
                " where relkind = 'r' and starts_with(relname, 'eec_') and relname <> 'eec_namespace' order by 1"
            )
        ]
        assert {"eec_partition", "eec_workflow_run", "eec_workflow_transition", "eec_outbox"} <= set(tables)
        found = connection.execute("select ns from eec_namespace where name = %s", [rig.namespace]).fetchone()
        assert found is not None
        ns = sql.Literal(found[0])
        connection.commit()
        connection.execute("set transaction isolation level repeatable read")

        def of_each(command: str, only: list[str]) -> None:
            for name in only:
                names = {"table": sql.Identifier(name), "copy": sql.Identifier(f"copy_{name}"), "ns": ns}
                connection.execute(sql.SQL(command).format(**names))  # type: ignore[arg-type]

        of_each("create temporary table {copy} as select * from {table} where ns = {ns}", tables)
        connection.commit()

        def put_back() -> None:
            of_each("select from {table} where ns = {ns} for update", ["eec_partition"])  # in the order of a commit
            of_each("delete from {table} where ns = {ns}", tables)
            of_each("insert into {table} overriding system value select * from {copy}", tables)
            connection.commit()

        yield put_back


def broken(rig: Rig) -> list[str]:
    """What ``rig.check`` would say, but for attempts that Postgres does not know to have been dispatched: it was in what it
    has lost, and an attempt that is decided and answered in one tick needs no other task."""
    return [each for each in rule_breaks(rig.database, rig.namespace) if not each.startswith("R4: ")]


def until_two_steps_done(rig: Rig, *run_ids: str) -> None:
    """Of ``order`` with input 2: all then wait for their word."""
    finished = "select run_id from eec_workflow_step_attempt where ns = {ns} and phase = 'finished'"
    until(
        lambda: sorted(row["run_id"] for row in rig.rows(finished)) == sorted([*run_ids, *run_ids]),
        within_ms=30_000,
        what="two steps done of each",
    )


def test_an_owner_ahead_of_postgres_takes_anew(rig: Rig) -> None:
    """Its cache, coroutines and offsets are of commits that never were: it is fenced, and does again what was lost."""
    worker = rig.worker()
    running = rig.coordinator()
    rig.start(*IDS, workflow="order", input=2)
    until_two_steps_done(rig, *IDS)
    rig.check()
    assert {rig.home(run_id) for run_id in IDS} == {0, 1}
    with remembered(rig) as put_back:
        for run_id in IDS:
            rig.signal(run_id, "go", signal_id="s")
        rig.start("new-1", "new-2", "new-3", workflow="chain", input=2)
        rig.until_status("completed", *IDS, "new-1", "new-2", "new-3")
        rig.check()
        loaded = running.count("ductor_runs_loaded")
        assert (running.count("ductor_ownership_lost"), running.owned, running.reasons()) == (0, {0, 1}, [])
        put_back()
    rig.until_status("running", *IDS)
    assert rig.run("new-1") == {}

    late = [f"late-{n}" for n in range(6)]
    assert {rig.home(run_id) for run_id in late} == {0, 1}
    rig.start(*late, workflow="chain", input=1)
    everyone = [*IDS, "new-1", "new-2", "new-3", *late]
    rig.until_status("completed", *everyone, within_ms=60_000)
    until(lambda: broken(rig) == [], within_ms=30_000, what="rules that hold, and rest")
    finished = (
        "select run_id, execution, node_id, generation from eec_workflow_step_attempt where ns = {ns} and phase = %s"
    )
    sent = {tuple(fence(task).values()) for task in worker.tasks}
    assert {tuple(row.values()) for row in rig.rows(finished, "finished")} <= sent, "R4: none ended that was never sent"
    assert running.count("ductor_ownership_lost") >= 1
    assert running.count("ductor_runs_loaded") > loaded, "nothing of the cache is left"
    assert running.owned == {0, 1}
    until(lambda: running.reasons() == [], within_ms=30_000, what="readiness")
    assert [rig.run(run_id)["result"] for run_id in IDS] == [[0, 2, "go", 0, 2]] * len(IDS)
    assert [rig.run(run_id)["result"] for run_id in ("new-1", "late-0")] == [[0, 2], [0]]
    assert rig.letters() == []
    ended = {(each.run_id, each.type) for each in rig.told() if each.type.startswith("run.c")}
    assert ended == {(run_id, "run.completed") for run_id in everyone}
    assert set(worker.effects.values()) <= {1, 2}, "done again once at most"
    running.stop()
