"""Purging runs that have ended: all that was kept for them goes, nothing else does, and an owner may be in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from store_rigs import T0, Background, Owner, PostgresRig, database_fixture, rig_fixture
from support import until

from ductor_stream.errors import RecordVersionConflict, StoreUnavailable
from ductor_stream.store import purge
from ductor_stream.store.grants import apply_grants
from ductor_stream.store.purge import Purged, Purger
from ductor_stream.store.queries import sql

database = database_fixture()
rig = rig_fixture()

DAY = 86_400_000
TABLES = ("run", "transition", "step_attempt", "signal")


@pytest.fixture
def purger(rig: PostgresRig) -> Iterator[Purger]:
    rig.open()  # its namespace
    with closing(Purger(rig.dsn, rig.name)) as made:
        yield made


def ended(owner: Owner, *run_ids: str, at: int = T0, status: str = "completed") -> None:
    """Runs with two transitions, an attempt and the id of a signal each, which ended at that moment."""
    owner.commit(*run_ids, counters={(owner.partition, "fulfil", "running"): len(run_ids)})
    owner.commit(
        *(owner.write(run_id, status=status, closed_at=at, started_at=at - 1_000, now=at) for run_id in run_ids),
        attempts=[owner.attempt(run_id) for run_id in run_ids],
        messages=[owner.message(run_id, "m-1") for run_id in run_ids],
        counters={
            (owner.partition, "fulfil", "running"): -len(run_ids),
            (owner.partition, "fulfil", status): len(run_ids),
        },
    )


def left(rig: PostgresRig) -> dict[str, list[str]]:
    """Run ids by table, as often as there are rows."""
    ns = "(select ns from eec_namespace where name = %s)"
    return {
        table: [
            row[0] for row in rig.rows(f"select run_id from eec_workflow_{table} where ns = {ns} order by 1", rig.name)
        ]
        for table in TABLES
    }


def purged(purger: Purger, before: int = T0 + 1) -> Purged:
    return sum(purger.batches(before), Purged())


def counts(rig: PostgresRig) -> list[tuple[Any, ...]]:
    return rig.rows(
        "select status, sum(count)::int from eec_counter join eec_namespace using (ns) where name = %s "
        "group by status having sum(count) <> 0 order by 1",
        rig.name,
    )


def test_what_ended_before_the_moment_goes_with_all_that_was_kept_for_it(rig: PostgresRig, purger: Purger) -> None:
    owner = Owner(rig.open())
    ended(owner, "old-1", "old-2", at=T0)
    ended(owner, "failed", at=T0 - DAY, status="failed")
    ended(owner, "young", at=T0 + 1)
    owner.commit("open", counters={(1, "fulfil", "running"): 1}, messages=[owner.message("open", "m")])
    owner.commit(messages=[owner.message("to-come", "m", body=b"b", expires_at=T0 + DAY)])
    assert purger.count(T0 + 1) == [("fulfil", "completed", 2), ("fulfil", "failed", 1)]
    assert purged(purger) == Purged(runs=3, transitions=6, attempts=3, messages=3)
    assert left(rig) == {
        "run": ["open", "young"],
        "transition": ["open", "young", "young"],
        "step_attempt": ["young"],
        "signal": ["open", "to-come", "young"],
    }
    assert counts(rig) == [("completed", 1), ("running", 1)]
    assert purged(purger) == Purged() and purger.count(T0 + 1) == []


def test_ids_of_messages_whose_run_never_came_go_after_their_wait(
    rig: PostgresRig, purger: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(rig.open())
    never = [f"never-{n}" for n in range(5)]
    for at, run_ids in ((T0, [*never, "came"]), (T0 + 1, ["young"]), (T0, ["waits"])):
        owner.commit(messages=[owner.message(run_id, "m", body=b"b", expires_at=at) for run_id in run_ids])
    owner.commit(released=[(run_id, "signal", "m") for run_id in (*never, "came", "young")])
    owner.commit("came")
    assert purger.count_leftovers(T0 + 1, 0) == (5, 0)
    monkeypatch.setattr(purge, "_IDS", 2)
    assert sum(purger.leftover_batches(T0 + 1, 0), Purged()) == Purged(messages=5)
    assert left(rig)["signal"] == ["came", "waits", "young"]
    assert owner.store.known_messages([("never-1", "signal", "m"), ("came", "signal", "m")]) == {
        ("came", "signal", "m"): "approved"
    }


def test_values_of_dead_letters_go_when_the_letters_are_gone(
    rig: PostgresRig, purger: Purger, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    owner, now = Owner(rig.open()), purger.now()
    owner.commit(payloads=[(f"old-{n}", b"b") for n in range(5)])
    rig.run("update eec_payload set stored_at = now() - interval '1 day'")
    owner.commit(payloads=[("young", b"b")])
    other = PostgresRig(database, rig.name + "-other")
    with closing(other):
        Owner(other.open()).commit(payloads=[("another's", b"b")])
    assert purger.count_leftovers(now, now) == (0, 5)
    monkeypatch.setattr(purge, "_PAYLOADS", 2)
    assert sum(purger.leftover_batches(now, now), Purged()) == Purged(payloads=5)
    assert sorted(rig.rows("select id from eec_payload")) == [("another's",), ("young",)]


def test_other_namespaces_are_left_alone(rig: PostgresRig, purger: Purger, database: str) -> None:
    other = PostgresRig(database, rig.name + "-other")
    with closing(other):
        ended(Owner(other.open()), "old")
        assert purged(purger) == Purged()
        assert left(other)["run"] == ["old"]


def test_a_namespace_that_is_not_there_has_nothing_to_purge(rig: PostgresRig) -> None:
    with closing(Purger(rig.dsn, rig.name + "-nowhere")) as purger:
        assert purged(purger) == Purged()


def test_it_goes_in_pages_by_runs_and_by_transitions(
    rig: PostgresRig, purger: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(rig.open())
    ended(owner, *(f"old-{n}" for n in range(5)), at=T0)  # all of one moment: the id tells them apart
    ended(owner, "older", at=T0 - DAY)
    monkeypatch.setattr(purge, "_PAGE", 2)
    pages = purger.batches(T0 + 1)
    assert [next(pages).runs, next(pages).runs] == [2, 2]
    assert len(left(rig)["run"]) == 2  # each page is committed: who stops here has lost nothing
    assert [page.runs for page in pages] == [2]
    ended(owner, *(f"new-{n}" for n in range(3)), at=T0)
    monkeypatch.setattr(purge, "_TRANSITIONS", 1)
    assert [page.runs for page in purger.batches(T0 + 1)] == [1, 1, 1]
    assert left(rig)["transition"] == []


def test_a_page_that_takes_too_long_is_halved(
    rig: PostgresRig, purger: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much hangs on a run is seen when it is deleted: a page of wide ones would else fail with each call."""
    owner = Owner(rig.open())
    ended(owner, *(f"r{n}" for n in range(8)))
    batch, asked = purger._batch, []

    def slow(before: int, place: tuple[int, str], limit: int) -> Any:
        asked.append(limit)
        if limit > 3:
            purger._rows("pg_sleep", {})
        return batch(before, place, limit)

    monkeypatch.setattr(purge, "sql", lambda name: b"select pg_sleep(30)" if name == "pg_sleep" else sql(name))
    purger._connection.execute(b"set statement_timeout = '20ms'")
    monkeypatch.setattr(purger, "_batch", slow)
    monkeypatch.setattr(purge, "_PAGE", 12)
    assert purged(purger).runs == 8
    assert asked == [12, 6, 3, 3, 3, 3]
    assert left(rig)["run"] == []


def test_what_something_has_come_for_since_is_kept(rig: PostgresRig, purger: Purger) -> None:
    owner = Owner(rig.open())
    ended(owner, "r", "s")
    owner.commit(owner.write("s", status="completed", closed_at=T0 + DAY, started_at=T0 - 1_000, now=T0 + DAY))
    assert purged(purger).runs == 1
    assert left(rig)["run"] == ["s"]
    assert purged(purger, T0 + DAY + 1).runs == 1


def test_a_run_that_its_owner_holds_is_passed_over_and_kept_when_it_goes_on(rig: PostgresRig, purger: Purger) -> None:
    ended(Owner(rig.open()), "held", "again", "free")
    with rig.session() as owner:
        owner.execute("update eec_workflow_run set closed_at = null, status = 'running' where run_id = 'again'")
        owner.execute("update eec_workflow_run set reason = 'held' where run_id = 'held'")
        assert purged(purger).runs == 1
        assert left(rig)["transition"] == ["again", "again", "held", "held"]
        owner.commit()
    assert purged(purger).runs == 1
    assert left(rig)["run"] == ["again"]


def test_an_owner_that_comes_during_the_purge_loses_its_version_and_begins_anew(
    rig: PostgresRig, purger: Purger
) -> None:
    owner = Owner(rig.open())
    ended(owner, "again")
    restart = owner.batch(owner.write("again", execution=2))
    with rig.session() as blocker:
        blocker.execute("select from eec_workflow_transition where run_id = 'again' for update")
        purging = Background(lambda: purged(purger))
        until(lambda: len(rig.blocked()) == 1, what="a purge that holds the run")
        committing = Background(lambda: owner.store.commit(restart))
        until(lambda: len(rig.blocked()) == 2, what="an owner that waits for the purge")
        blocker.rollback()
        assert purging.result().runs == 1
        with pytest.raises(RecordVersionConflict):
            committing.result()
    assert owner.store.load(["again"])["again"].header is None
    owner.commit(owner.write("again", expected=0))
    assert left(rig) == {"run": ["again"], "transition": ["again"], "step_attempt": [], "signal": []}


def test_two_purges_share_the_work(rig: PostgresRig, purger: Purger, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(Owner(rig.open()), *(f"old-{n}" for n in range(60)))
    monkeypatch.setattr(purge, "_PAGE", 3)
    with closing(Purger(rig.dsn, rig.name)) as other:
        both = [Background(lambda p=each: purged(p)) for each in (purger, other)]  # type: ignore[misc]
        gone = both[0].result() + both[1].result()
    gone += purged(purger)  # what each passed over since the other held it
    assert gone == Purged(60, 120, 60, 60)
    assert counts(rig) == []


def test_its_role_can_purge_and_nothing_else(rig: PostgresRig) -> None:
    owner = Owner(rig.open())
    ended(owner, "old")
    owner.commit(messages=[owner.message("never", "m", body=b"b", expires_at=T0)], payloads=[("p", b"b")])
    owner.commit(released=[("never", "signal", "m")])
    role = f"purger_{rig.name}".replace("-", "_")
    rig.run(f"create role {role} login password 'p'")
    apply_grants(rig.dsn, {"purger": role})
    dsn = psycopg.conninfo.make_conninfo(rig.dsn, user=role, password="p")
    with closing(Purger(dsn, rig.name)) as purger:
        assert purged(purger).runs == 1
        assert sum(purger.leftover_batches(T0 + 1, purger.now() + 1), Purged()) == Purged(messages=1, payloads=1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for forbidden in ("update eec_workflow_run set status = 'failed'", "select from eec_partition"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden.encode())


def test_a_server_that_goes_away_is_said(rig: PostgresRig, purger: Purger) -> None:
    rig.run("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ductor-stream purge'")
    with pytest.raises(StoreUnavailable):
        purged(purger)
