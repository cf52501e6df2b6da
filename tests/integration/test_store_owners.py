"""Two owners of one partition on purpose, races held open by locks (protocol 1 to 6; R3)."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from store_rigs import (
    Background,
    Owner,
    PostgresRig,
    database_fixture,
    rig_fixture,
)
from support import until

from ductor_stream.errors import (
    CommitOutcomeUnknown,
    OwnershipLost,
    RecordVersionConflict,
    StoreUnavailable,
)
from ductor_stream.ports import UNREAD, Taken

PATIENT = {"lock_timeout_ms": 25_000}
"""For races in which a wait for a lock is the point: it must not end by itself."""

HASTY = {"lock_timeout_ms": 200}


database = database_fixture()
rig = rig_fixture()


def hold_run(rig: PostgresRig, session: psycopg.Connection, run_id: str) -> None:
    """Lock the row of a run in a session that is not ours."""
    session.execute(
        "select from eec_workflow_run where run_id = %s and ns = (select ns from eec_namespace where name = %s) for update",
        (run_id, rig.name),
    )


def hold_partition(rig: PostgresRig, session: psycopg.Connection) -> None:
    """Lock the row of partition 1 in a session that is not ours."""
    session.execute(
        "select from eec_partition where partition = 1 and ns = (select ns from eec_namespace where name = %s) for update",
        (rig.name,),
    )


def waiting(rig: PostgresRig, count: int) -> None:
    until(lambda: len(rig.blocked()) == count, what=f"{count} session(s) waiting for a lock")


def take(rig: PostgresRig, **options: int) -> Taken:
    return rig.open(**options).take(1, str(uuid.uuid4()))


# -- two owners --------------------------------------------------------------------------------


def test_the_old_owner_commits_nothing_not_even_an_offset(rig: PostgresRig) -> None:
    old = Owner(rig.open())
    old.commit("r")
    new = Owner(rig.open())
    before = rig.everything()
    for batch in (
        old.batch("r"),
        old.batch("new"),
        old.batch(),
        old.batch(inbox=[old.mail("one"), old.mail("two", partition=2)]),
        old.batch(messages=[old.message("r", "m")], counters={(1, "fulfil", "running"): 1}),
    ):
        with pytest.raises(OwnershipLost):
            old.store.commit(batch)
    assert rig.everything() == before
    new.versions["r"] = 1
    new.commit("r")


def test_a_late_raise_by_an_expelled_owner_is_outdone_by_taking_anew(rig: PostgresRig) -> None:
    expelled, owner = Owner(rig.open()), Owner(rig.open())
    owner.commit("r")
    expelled.store.take(1, str(uuid.uuid4()))  # it was about to, and came late
    with pytest.raises(OwnershipLost):
        owner.commit("s")
    again = Owner(owner.store)
    assert again.taken.outbox == [(1, b"outbox 1")]
    again.commit("s")


def test_offsets_that_went_back_are_noticed(rig: PostgresRig) -> None:
    """A promoted replica that lost the last commit (protocol 4): token and epoch are right, the offsets are not."""
    owner = Owner(rig.open())
    owner.commit("r")
    rig.run(
        "update eec_partition set offsets = '{-1,-1,-1}' where ns = (select ns from eec_namespace where name = %s)",
        rig.name,
    )
    with pytest.raises(OwnershipLost):
        owner.commit("s")


# -- taking while the old owner commits (protocol 1) -------------------------------------------


def test_a_commit_in_flight_lands_before_the_take_and_is_seen(rig: PostgresRig) -> None:
    old = Owner(rig.open(**PATIENT))
    old.commit("r")
    with rig.session() as somebody:
        hold_run(rig, somebody, "r")
        commit = Background(lambda: old.commit("r", inbox=[old.mail("one")], open_attempts=[old.open_attempt("r")]))
        waiting(rig, 1)  # the commit holds the partition's row and waits for the run's
        taking = Background(lambda: take(rig, **PATIENT))
        waiting(rig, 2)
        assert not taking.done
        somebody.rollback()
        commit.result()
        taken = taking.result()
    assert taken.offsets == (1, UNREAD, UNREAD)
    assert taken.outbox == [(1, b"outbox 1"), (2, b"outbox 2")]
    assert [a.run_id for a in taken.open_attempts] == ["r"]
    assert rig.open().load(["r"])["r"].record_version == 2


def test_a_commit_that_waits_behind_a_take_lands_nothing(rig: PostgresRig) -> None:
    old = Owner(rig.open(**PATIENT))
    old.commit("r")
    with rig.session() as taker:
        taker.execute(
            "update eec_partition set epoch = epoch + 1, token = gen_random_uuid() "
            "where ns = (select ns from eec_namespace where name = %s)",
            (rig.name,),
        )
        commit = Background(lambda: old.commit("r", "new", inbox=[old.mail("one")]))
        waiting(rig, 1)
        taker.commit()
        before = rig.everything()
        with pytest.raises(OwnershipLost):
            commit.result()
    assert rig.everything() == before


def test_two_takes_of_a_new_partition_at_once(rig: PostgresRig) -> None:
    stores = [rig.open(**PATIENT) for _ in range(4)]
    calls = [Background(lambda s=store: s.take(1, str(uuid.uuid4())).epoch) for store in stores]  # type: ignore[misc]
    epochs = []
    for call in calls:
        try:
            epochs.append(call.result())
        except OwnershipLost:
            continue  # overtaken between its raise and its read
    assert len(epochs) == len(set(epochs))
    assert Owner(rig.open()).epoch == 5


# -- frozen owners (protocol 6) ----------------------------------------------------------------


def test_an_owner_frozen_in_a_transaction_is_ended(rig: PostgresRig) -> None:
    frozen = Owner(rig.open(idle_in_transaction_timeout_ms=600_000))
    frozen.commit("r")
    frozen.store.lock(["r"])
    taken = take(rig, **HASTY)
    assert (taken.epoch, taken.outbox) == (2, [(1, b"outbox 1")])
    before = rig.everything()
    with pytest.raises(CommitOutcomeUnknown):
        frozen.commit("r")
    assert rig.everything() == before


def test_an_owner_frozen_in_mid_commit_is_ended_and_nothing_of_it_lands(rig: PostgresRig) -> None:
    frozen = Owner(rig.open(**PATIENT))
    frozen.commit("r")
    before_runs = rig.open().load(["r", "new"])
    with rig.session() as somebody:
        hold_run(rig, somebody, "r")
        commit = Background(lambda: frozen.commit("r", "new"))
        waiting(rig, 1)
        taken = take(rig, **HASTY)
        with pytest.raises(CommitOutcomeUnknown):
            commit.result()
    assert taken.outbox == [(1, b"outbox 1")]
    assert rig.open().load(["r", "new"]) == before_runs


def test_an_idle_transaction_of_an_owner_ends_by_itself(rig: PostgresRig) -> None:
    frozen = Owner(rig.open(idle_in_transaction_timeout_ms=100))
    frozen.commit("r")
    frozen.store.lock(["r"])
    until(lambda: not rig.rows("select from pg_stat_activity where state = 'idle in transaction'"))
    with pytest.raises(CommitOutcomeUnknown):
        frozen.commit("r")


def test_a_session_that_is_not_ours_is_left_alone_and_named(rig: PostgresRig) -> None:
    Owner(rig.open())
    with rig.session("pgAdmin") as somebody:
        hold_partition(rig, somebody)
        with pytest.raises(StoreUnavailable, match=r"stays locked by session \d+ \(pgAdmin\)"):
            take(rig, lock_timeout_ms=50)
        assert somebody.execute("select 1").fetchone() == (1,)
    assert take(rig).epoch == 2


def test_a_take_waits_for_a_lock_that_is_given_back(rig: PostgresRig) -> None:
    Owner(rig.open())
    with rig.session() as somebody:
        hold_partition(rig, somebody)
        taking = Background(lambda: take(rig, lock_timeout_ms=2_000))
        waiting(rig, 1)
        somebody.rollback()
        assert taking.result().epoch == 2


# -- locks on runs (protocol 18, 23) -----------------------------------------------------------


def test_the_lock_of_the_last_try_keeps_others_out(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.commit("r")
    owner.store.lock(["r"])
    with rig.session() as somebody:
        somebody.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            hold_run(rig, somebody, "r")
    owner.versions["r"] = owner.store.load(["r"])["r"].record_version
    owner.commit("r")


def test_a_run_that_somebody_keeps_locked_does_not_hold_up_its_neighbours(rig: PostgresRig) -> None:
    owner = Owner(rig.open(**HASTY))
    owner.commit("r", "s", "t")
    with rig.session() as somebody:
        hold_run(rig, somebody, "s")
        with pytest.raises(RecordVersionConflict) as caught:
            owner.commit("r", "s", "t")
        assert caught.value.run_ids == {"s"}
        owner.commit("r", "t")
        with pytest.raises(RecordVersionConflict):
            owner.store.lock(["s"])
        owner.commit("r")  # no transaction is left open
    owner.commit("s")


def test_a_zombie_with_a_lock_and_the_owner_do_not_deadlock(rig: PostgresRig) -> None:
    zombie = Owner(rig.open(**PATIENT))
    zombie.commit("r")
    owner = Owner(rig.open(**PATIENT))
    owner.versions["r"] = 1
    zombie.store.lock(["r"])
    commit = Background(lambda: owner.commit("r"))
    waiting(rig, 1)
    with pytest.raises(OwnershipLost):
        zombie.commit("r")
    commit.result()


def test_a_commit_that_ended_a_deadlock_is_sent_again(rig: PostgresRig) -> None:
    """Nothing of it landed: no outage, and no other owner."""
    owner = Owner(rig.open(**PATIENT))
    owner.commit("r", "s")
    with rig.session() as somebody:
        commit = deadlocked(rig, owner, somebody)
    commit.result()
    assert {run_id: run.record_version for run_id, run in rig.open().load(["r", "s"]).items()} == {"r": 2, "s": 2}
    owner.commit("r", "s")


def test_after_a_deadlock_with_locks_that_stay_nothing_has_landed(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.commit("r", "s")
    before = rig.open().load(["r", "s"])
    with rig.session() as somebody:
        commit = deadlocked(rig, owner, somebody)
        with pytest.raises(RecordVersionConflict, match="locked"):
            commit.result()
    assert rig.open().load(["r", "s"]) == before
    owner.commit("r", "s")


def deadlocked(rig: PostgresRig, owner: Owner, somebody: psycopg.Connection) -> Background:
    """A commit of both runs that was the victim of a deadlock; somebody still holds run r and the partition."""
    # Whoever waits longest finds the deadlock and is its victim: that is to be the owner.
    somebody.execute("set deadlock_timeout = '60s'")
    hold_run(rig, somebody, "r")
    commit = Background(lambda: owner.commit("r", "s"))
    waiting(rig, 1)
    hold_partition(rig, somebody)
    return commit


def test_locks_that_were_not_used_end_with_the_next_take(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    owner.commit("r")
    owner.store.lock(["r"])
    again = Owner(owner.store)
    with rig.session() as somebody:
        hold_run(rig, somebody, "r")
    again.versions["r"] = 1
    again.commit("r")


def test_the_session_is_ours_whatever_the_connection_string_says(rig: PostgresRig) -> None:
    options = (
        "-c%20synchronous_commit%3Doff%20-c%20lock_timeout%3D1h%20-c%20default_transaction_isolation%3Dserializable"
    )
    separator = "&" if "?" in rig.dsn else "?"
    store = rig.open(dsn=f"{rig.dsn}{separator}options={options}&application_name=mine&target_session_attrs=any")
    names = ("synchronous_commit", "lock_timeout", "transaction_isolation")
    settings = [store._connection.execute(f"show {name}".encode()).fetchone() for name in names]
    assert settings == [("on",), ("3s",), ("read committed",)]
    assert store._connection.info.get_parameters()["target_session_attrs"] == "read-write"
    ((name,),) = rig.rows(
        "select application_name from pg_stat_activity where pid = %s", store._connection.info.backend_pid
    )
    assert name.startswith(f"ductor-stream owner {rig.name} ")
