"""What is known after a connection or a server went away: nothing landed, or the outcome is unknown (protocol 3)."""

from __future__ import annotations

import pytest
from store_rigs import (
    Background,
    Owner,
    PostgresRig,
    database_fixture,
    rig_fixture,
)
from support import until
from tcp_proxy import proxied

from ductor_stream.dev.postgres import EmbeddedPostgres
from ductor_stream.errors import (
    CommitOutcomeUnknown,
    DuctorError,
    SchemaMismatch,
    StoreUnavailable,
)
from ductor_stream.ports import UNREAD
from ductor_stream.store.migrate import migrate
from ductor_stream.store.postgres import PostgresStore

database = database_fixture()
rig = rig_fixture()


def taken_anew(owner: Owner) -> Owner:
    owner.store.reconnect()
    return Owner(owner.store)


# -- a commit whose answer is lost -------------------------------------------------------------


def test_a_commit_that_landed_unheard_is_found_by_taking_anew(rig: PostgresRig) -> None:
    with proxied(rig.dsn) as (proxy, dsn):
        owner = Owner(rig.open(dsn=dsn))
        owner.commit("r")
        owner.commit("r")  # now the statement is prepared: from here on a commit is one request and one answer
        proxy.hold_answers()
        commit = Background(lambda: owner.commit("r"))
        until(lambda: proxy.held_answers > 0, what="an answer of Postgres on the way")
        proxy.cut()
        with pytest.raises(CommitOutcomeUnknown):
            commit.result()
        again = taken_anew(owner)
        assert again.taken.offsets == (2, UNREAD, UNREAD)
        assert [seq for seq, _ in again.taken.outbox] == [1, 2, 3]
        assert again.store.load(["r"])["r"].record_version == 3


def test_a_commit_that_never_arrived_is_done_again_after_taking_anew(rig: PostgresRig) -> None:
    with proxied(rig.dsn) as (proxy, dsn):
        owner = Owner(rig.open(dsn=dsn))
        owner.commit("r")
        proxy.hold_requests()
        commit = Background(lambda: owner.commit("r"))
        proxy.cut()
        with pytest.raises(CommitOutcomeUnknown):
            commit.result()
        again = taken_anew(owner)
        assert again.taken.offsets == (0, UNREAD, UNREAD)
        again.versions["r"] = again.store.load(["r"])["r"].record_version
        again.commit("r")
        assert again.store.load(["r"])["r"].record_version == 2


def test_a_server_that_does_not_answer_is_given_up(rig: PostgresRig) -> None:
    with proxied(rig.dsn) as (proxy, dsn):
        owner = Owner(rig.open(dsn=dsn, answer_timeout_ms=300))
        owner.commit("before")
        proxy.hold_answers()
        with pytest.raises(CommitOutcomeUnknown, match="no answer"):
            owner.commit("r")
        with pytest.raises(StoreUnavailable):
            owner.store.ping()
        until(lambda: proxy.held_answers > 0, what="the answer that came too late")
        proxy.cut()
        assert taken_anew(owner).taken.offsets == (1, UNREAD, UNREAD)  # it had landed


def test_a_backend_that_is_ended_in_mid_commit_leaves_nothing(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.commit("r")
    with rig.session() as somebody:
        somebody.execute("lock table eec_workflow_transition in share mode")
        commit = Background(lambda: owner.commit("r", "new"))
        (pid,) = until(rig.blocked)
        rig.run("select pg_terminate_backend(%s)", pid)
        with pytest.raises(CommitOutcomeUnknown):
            commit.result()
    again = taken_anew(owner)
    assert again.taken.offsets == (0, UNREAD, UNREAD)
    assert [run.record_version for run in again.store.load(["r", "new"]).values()] == [1, 0]


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_a_statement_that_is_cancelled_is_unknown_too(rig: PostgresRig, how: str) -> None:
    owner = Owner(rig.open(statement_timeout_ms=300 if how == "timed out" else 60_000))
    with rig.session() as somebody:
        somebody.execute("lock table eec_workflow_transition in share mode")
        commit = Background(lambda: owner.commit("r"))
        if how == "cancelled":
            (pid,) = until(rig.blocked)
            rig.run("select pg_cancel_backend(%s)", pid)
        with pytest.raises(CommitOutcomeUnknown):
            commit.result()
    assert Owner(owner.store).store.load(["r"])["r"].record_version == 0


def test_a_table_that_is_locked_for_long_is_no_fault_of_any_run(rig: PostgresRig) -> None:
    owner = Owner(rig.open(lock_timeout_ms=200))
    with rig.session() as somebody:
        somebody.execute("lock table eec_workflow_transition in share mode")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            owner.commit("r")
    owner.commit("r")


# -- known not to have landed ------------------------------------------------------------------


def test_on_a_closed_connection_nothing_is_sent(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.store.close()
    for call in (
        lambda: owner.commit("r"),
        owner.store.ping,
        lambda: owner.store.load(["r"]),
        lambda: owner.store.lock(["r"]),
        lambda: owner.store.inbox(1, 1, 0),
        lambda: owner.store.release(1, owner.token, owner.epoch),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    owner.store.reconnect()
    owner.commit("r")


def test_a_read_over_a_broken_connection_is_unavailable(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    rig.run("select pg_terminate_backend(%s)", owner.store._connection.info.backend_pid)  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        owner.store.load(["r"])
    with pytest.raises(StoreUnavailable, match="closed"):
        owner.commit("r")
    owner.store.reconnect()
    owner.commit("r")


def test_a_server_that_can_only_read_is_refused(rig: PostgresRig) -> None:
    """A standby, or a primary that was demoted: a session there would commit nothing (target_session_attrs)."""
    ((name,),) = rig.rows("select current_database()")
    owner = Owner(rig.open())
    try:
        rig.run(f'alter database "{name}" set default_transaction_read_only = on')
        with pytest.raises(StoreUnavailable, match=r"read.only"):
            owner.store.reconnect()
    finally:
        rig.run("set default_transaction_read_only = off")
        rig.run(f'alter database "{name}" reset default_transaction_read_only')
    owner.store.reconnect()
    owner.commit("r")


def test_a_session_that_may_no_longer_write(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.store._connection.execute(b"set default_transaction_read_only = on")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="read-only"):
        owner.commit("r")


@pytest.mark.parametrize("dsn", ["postgresql://127.0.0.1:1/none", "postgresql://nobody:x@127.0.0.1:1/none"])
def test_nobody_listens(dsn: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        PostgresStore(dsn)


def test_a_database_without_the_schema_names_the_remedy(database_url: str) -> None:
    store = PostgresStore(database_url)
    try:
        with pytest.raises(SchemaMismatch, match="ductor-stream migrate"):
            store.namespace("shop", "cluster", 4)
    finally:
        store.close()


# -- restarts ----------------------------------------------------------------------------------


def test_a_restart_of_postgres_loses_nothing(own_postgres: EmbeddedPostgres) -> None:
    migrate(own_postgres.url)
    store = PostgresStore(own_postgres.url)
    try:
        store.namespace("shop", "cluster", 4)
        owner = Owner(store)
        owner.commit("r")
        own_postgres.stop()
        with pytest.raises((CommitOutcomeUnknown, StoreUnavailable)):
            owner.commit("r")
        with pytest.raises(StoreUnavailable):
            store.reconnect()
        with pytest.raises(StoreUnavailable):
            store.ping()
        own_postgres.start()
        again = taken_anew(owner)
        assert again.taken.offsets == (0, UNREAD, UNREAD)
        again.versions["r"] = 1
        again.commit("r")
    finally:
        store.close()


def test_no_error_of_the_driver_leaks(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.commit("r")
    rig.run("select pg_terminate_backend(%s)", owner.store._connection.info.backend_pid)  # type: ignore[attr-defined]
    with pytest.raises(DuctorError):
        owner.commit("r")
    with pytest.raises(DuctorError):
        owner.store.take(1, owner.token)
    with pytest.raises(DuctorError):
        owner.store.declare([("w", "1", "d")])
