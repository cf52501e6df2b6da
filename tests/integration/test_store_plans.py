"""Every query uses the indexes that its header names, however full the tables were when it was planned."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg import Connection
from store_rigs import (
    CLUSTER,
    T0,
    N,
    Owner,
    PostgresRig,
    database_fixture,
    indexes_of,
    postgres_rig,
)
from support import until

from ductor_stream.ports import Batch, Folded
from ductor_stream.store.columns import Bytea, Int2, Int4, Int4s, Int8, Int8s, Moment, Text, Texts
from ductor_stream.store.connection import StoreOptions, open_purger, open_reader
from ductor_stream.store.postgres import PostgresStore
from ductor_stream.store.queries import all_queries, sql

RUNS = 400
TABLES = "select relname from pg_class where relname like 'eec_%%' and relkind = 'r'"

COMMITS = {"commit", "fold"}
PARTITION = {"partition": Int4(1)}
PAGE = {**PARTITION, "after": Text(""), "limit": Int8(10)}
TOKEN = {**PARTITION, "token": Text(str(uuid.UUID(int=1)))}
RUN_IDS = {"run_ids": Texts(["run-1", "run-2"])}
RUN = {"run_id": Text("run-1")}

OWNERS: dict[str, dict[str, Any]] = {
    "create_partition": {**TOKEN, "offsets": Int8s([-1])},
    "raise_epoch": TOKEN,
    "read_partition": {**TOKEN, "epoch": Int8(1)},
    "list_open_attempts": PARTITION,
    "release_partition": {**TOKEN, "epoch": Int8(1)},
    "note_suspect": {**TOKEN, "epoch": Int8(1), "run_id": Text("r1"), "deaths": Int2(0)},
    "find_folded": RUN,
    "list_foldable": {**RUN, "after": Int8(0), "below": Int8(3), "limit": Int8(10), "bytes": Int8(1_000)},
    "drop_attempts": {**TOKEN, "epoch": Int8(1), "run_id": Text("r1"), "execution": Int4(2), "limit": Int8(10)},
    "read_fences": {"partitions": Int4s([1, 2])},
    "end_blocker": {**PARTITION, "ours": Text("nobody")},
    "find_namespace": {"name": Text("x")},
    "create_namespace": {"name": Text("planned"), "partitions": Int4(1), "cluster_id": Text("x")},
    "load_runs": {**RUN_IDS, "whole": Texts([]), "bytes": Int8(1_000)},
    "lock_partitions": RUN_IDS,
    "lock_runs": RUN_IDS,
    "find_unlocked": RUN_IDS,
    "read_versions": RUN_IDS,
    "known_messages": {**RUN_IDS, "kinds": Texts(["signal", "signal"]), "ids": Texts(["a", "b"])},
    "list_due_runs": {**PAGE, "until": Moment(T0)},
    "list_open_runs": {**PAGE, "bytes": Int8(1_000)},
    "list_suspended_runs": PAGE,
    "list_inbox": {**PARTITION, "now": Moment(T0), "limit": Int8(10)},
    "list_put_off": {**PARTITION, "after": Int8(0), "limit": Int8(10)},
    "list_inbox_ids": {"partitions": Int4s([1]), "ids": Int8s([1])},
    "list_expired_messages": {**PARTITION, "now": Moment(T0), "limit": Int8(10)},
}

GONE = T0 + 200
"""Up to here runs are purged."""

PURGERS: dict[str, dict[str, Any]] = {
    "count_closed": {"before": Moment(GONE)},
    "hold_closed": {"before": Moment(GONE), "page_at": Moment(GONE), "page_id": Text(""), "limit": Int8(10)},
    "drop_closed": RUN_IDS,
    "count_left_over": {"before": Moment(GONE), "letters_before": Moment(GONE)},
    "drop_waited": {"after": Moment(0), "before": Moment(GONE), "limit": Int8(10)},
    "drop_payloads": {"before": Moment(GONE), "limit": Int8(10)},
}

READERS: dict[str, dict[str, Any]] = {
    "find_run": RUN,
    "find_closed": RUN,
    "list_runs": {
        "status": Text(None),
        "workflow": Text(None),
        "before_at": Moment(None),
        "before_id": Text(None),
        "limit": Int8(10),
    },
    "list_newest_open_runs": {"limit": Int8(10)},
    "list_attempts": RUN,
    "list_open_attempts_of_run": {**PARTITION, **RUN},
    "list_put_off_of_run": {**PARTITION, "run_id": Bytea(b"r"), "limit": Int8(10)},
    "list_history": {**RUN, "after": Int8(0), "limit": Int8(10)},
    "read_counts": {},
    "count_open_versions": {},
    "list_declared": {},
    "check_missing": {**RUN_IDS, "limit": Int8(10)},
    "find_outcomes": {**RUN_IDS, "start_ids": Texts(["s-1", ""])},
}


database = database_fixture()


@pytest.fixture(params=["emptied", "never analyzed", "full"])
def rig(request: pytest.FixtureRequest, database: str) -> Iterator[PostgresRig]:
    """Tables in the states in which plans are made that live on."""
    with postgres_rig(database) as made:
        for (table,) in made.rows(TABLES):
            if table not in ("eec_schema", "eec_namespace"):
                made.run(f"truncate {table}")
        if request.param == "emptied":
            made.run("vacuum analyze")
        if request.param == "full":
            fill(made.open(), made.name)
            made.run("vacuum analyze")
        yield made


def fill(store: PostgresStore, name: str) -> None:
    """Two namespaces, of which the other is the larger."""
    for namespace, count in ((name + "-other", 4 * RUNS), (name, RUNS)):
        store.namespace(namespace, CLUSTER, N)
        for partition in range(N):
            owner = Owner(store, partition)
            ids = [f"run-{n}" for n in range(partition, count, N)]
            owner.commit(
                *(owner.write(run_id, started_at=T0 + n, wake_at=T0 + n) for n, run_id in enumerate(ids)),
                attempts=[owner.attempt(run_id) for run_id in ids],
                open_attempts=[owner.open_attempt(run_id) for run_id in ids],
                messages=[owner.message(run_id, "m", body=b"b", expires_at=T0 + n) for n, run_id in enumerate(ids)],
                inbox=[owner.mail(f"source-{n}") for n in range(count // N)],
                counters={(partition, "fulfil", "running"): len(ids)},
            )


class Plans:
    """The plans of what a connection executes, as auto_explain tells them."""

    def __init__(self, connection: Connection[Any], ns: int) -> None:
        self._connection = connection
        self._ns = ns
        self._heard: list[str] = []
        for statement in (
            "load 'auto_explain'",
            "set auto_explain.log_min_duration = 0",
            "set auto_explain.log_analyze = on",
            "set client_min_messages = log",
        ):
            connection.execute(statement.encode())
        connection.add_notice_handler(lambda notice: self._heard.append(notice.message_primary or ""))

    def of(self, query: str, params: dict[str, Any]) -> str:
        self._heard.clear()
        self._connection.execute(sql(query), {"ns": Int2(self._ns), **params}, binary=True)
        return self.last()

    def last(self) -> str:
        assert self._heard, "auto_explain said nothing"
        return re.sub(r"^.*?\n\n", "", self._heard[-1], count=1, flags=re.DOTALL)


def check(query: str, plan: str) -> None:
    assert "Seq Scan" not in plan, f"{query}:\n{plan}"
    for index in indexes_of(query):
        named = rf"(using {index} |Conflict Arbiter Indexes: {index}$|Bitmap Index Scan on {index} )"
        assert re.search(named, plan, re.MULTILINE), f"{query} does not use {index}:\n{plan}"


def number(rig: PostgresRig) -> int:
    ((ns,),) = rig.rows("select ns from eec_namespace where name = %s", rig.name)
    return int(ns)


def test_every_query_that_names_an_index_is_tried() -> None:
    assert set(OWNERS) | set(READERS) | set(PURGERS) | COMMITS == {q.name for q in all_queries().values() if q.indexes}


def test_the_queries_of_owners_use_their_indexes(rig: PostgresRig) -> None:
    store = rig.open()
    plans = Plans(store._connection, number(rig))
    for query, params in OWNERS.items():
        check(query, plans.of(query, params))


def test_the_queries_of_a_purge_use_their_indexes(rig: PostgresRig) -> None:
    rig.open()
    with closing(open_purger(rig.dsn, StoreOptions())) as connection:
        plans = Plans(connection, number(rig))
        for query, params in PURGERS.items():
            check(query, plans.of(query, params))


def test_commits_use_their_indexes(rig: PostgresRig) -> None:
    store = rig.open()
    plans = Plans(store._connection, number(rig))
    owner = Owner(store)
    runs = [f"planned-{n}" for n in range(20)]
    owner.commit(*runs, inbox=[owner.mail("one")], messages=[owner.message("r", "m", body=b"b", expires_at=T0)])
    (mail,) = store.inbox(1, 1, T0)
    owner.send(
        Batch(
            partitions=[owner.advance(confirmed=owner.seq)],
            runs=[*map(owner.write, runs[:10]), *(owner.write(run_id, header=None) for run_id in runs[10:])],
            released=[("r", "signal", "m")],
            consumed=[(1, mail.id)],
            closed_attempts=[(1, "r", 1, "1")],
        )
    )
    check("commit", plans.last())
    owner.commit(owner.write("planned-2", journal_from=3))
    assert store.fold((owner.partition, owner.token, owner.epoch), "planned-2", 0, Folded(2, 1, T0, T0, {}))
    check("fold", plans.last())


def test_a_commit_of_few_parts_touches_no_table_that_it_has_no_rows_for(rig: PostgresRig) -> None:
    store = rig.open()
    plans = Plans(store._connection, number(rig))
    owner = Owner(store)
    owner.commit("r")
    owner.commit(owner.write("r", header=None), attempts=[owner.attempt("r")])
    plan = plans.last()
    assert "Seq Scan" not in plan, plan
    of_a_step = {
        "eec_partition",
        "eec_workflow_run",
        "eec_workflow_transition",
        "eec_workflow_step_attempt",
        "eec_outbox",
    }
    assert {name for name in re.findall(r" on (eec_\w+)", plan) if not name.endswith("_pkey")} == of_a_step


def test_a_plan_made_while_tables_were_empty_does_not_read_them_whole_when_they_are_full(rig: PostgresRig) -> None:
    store = rig.open()
    owner = Owner(store)
    plans = Plans(store._connection, number(rig))
    runs = [f"planned-{n}" for n in range(100)]

    def arrive(count: int, **changes: bytes | None) -> None:
        owner.commit(
            *(owner.write(run_id, **changes) for run_id in runs[:count]),
            closed_attempts=[(1, run_id, 1, "1") for run_id in runs[:count]],
            messages=[owner.message(run_id, str(owner.versions.get(run_id, 0))) for run_id in runs[:count]],
            inbox=[owner.mail(f"planned-{owner.seq}-{n}") for n in range(count)],
        )

    def leave(count: int, **changes: bytes | None) -> None:
        rows = store.inbox(1, count, T0)
        owner.send(Batch(partitions=[owner.advance()], deferred=[(1, row.id, T0, 1) for row in rows]))
        owner.send(
            Batch(
                partitions=[owner.advance(confirmed=owner.seq)],
                runs=[owner.write(run_id, **changes) for run_id in runs[:count]],
                consumed=[(1, row.id) for row in rows],
            )
        )

    def sees_no_more_than_keys() -> None:
        plan = plans.last()
        # No node of the plan sees more rows than there were keys, nor throws away more than that after reading them.
        seen = [float(rows) * int(loops) for rows, loops in re.findall(r"actual time=\S+ rows=(\S+) loops=(\d+)", plan)]
        thrown_away = [int(rows) for rows in re.findall(r"Rows Removed by (?:Join )?Filter: (\d+)", plan)]
        assert max(seen) <= len(runs), plan
        assert max(thrown_away, default=0) <= len(runs), plan

    arrive(1)
    for header in (b"", None):  # each statement is planned here, on tables as good as empty
        arrive(1, header=header)
        leave(1, header=header)
    arrive(100, header=b"")
    for header in (b"", None):
        for move in (arrive, leave):
            move(100, header=header)
            sees_no_more_than_keys()


def test_the_queries_of_readers_use_their_indexes(database: str) -> None:
    with postgres_rig(database) as rig:
        fill(rig.open(), rig.name)
        rig.run("vacuum analyze")
        connection = open_reader(rig.dsn, StoreOptions())
        try:
            # A table of a few pages is read whole, and rightly; what is asked here is whether the index can be used.
            connection.execute(b"set enable_seqscan = off")
            plans = Plans(connection, number(rig))
            for query, params in READERS.items():
                check(query, plans.of(query, params))
        finally:
            connection.close()


def test_updates_are_heap_only(database: str) -> None:
    """No index is touched when a run goes on by a step, a partition advances, a heartbeat or a count comes in."""
    with postgres_rig(database) as rig:
        store = rig.open()
        owner = Owner(store)
        runs = [f"run-{n}" for n in range(5)]
        tables = ("eec_workflow_run", "eec_partition", "eec_open_attempt", "eec_counter")
        rig.run("select pg_stat_reset()")
        for n in range(60):
            owner.commit(
                *(owner.write(run_id, wake_at=T0 + n, status="paused" if n % 2 else "running") for run_id in runs),
                open_attempts=[owner.open_attempt(run_id, beat_at=T0 + n) for run_id in runs],
                counters={(1, "fulfil", "running"): 1},
            )
        store.close()  # a session that ends hands in its statistics
        for table in tables:

            def counted(table: str = table) -> tuple[int, int] | None:
                query = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = %s"
                ((updated, hot),) = rig.rows(query, table)
                return (updated, hot) if updated >= 59 else None

            updated, hot = until(counted, what=f"the statistics of {table}") or (0, 0)
            assert hot >= 0.97 * updated, (table, updated, hot)
