"""What every ``RunStore`` does, whatever it is made of. Each test is a behaviour over the port alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec
import pytest
from servers import PostgresServer
from store_rigs import CLUSTER, POSTGRES, T0, N, Owner, StoreRig, migrated_database, postgres_label, postgres_rig
from support import fresh_name

from ductor_stream.errors import (
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
    TopicsNotReady,
)
from ductor_stream.ports import UNREAD, Batch, LoadedRun, OpenAttempt, RunStore, RunWrite, Taken


@pytest.fixture(scope="module", params=POSTGRES, ids=postgres_label)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each Postgres there is."""

    def session() -> PostgresServer:
        found: PostgresServer = request.getfixturevalue("postgres")
        return found

    with migrated_database(request.param, tmp_path_factory.mktemp("store"), session) as url:
        yield url


@pytest.fixture
def rig(database: str) -> Iterator[StoreRig]:
    """One rig per implementation."""
    with postgres_rig(database) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A namespace that nobody has."""
    return fresh_name("orders")


@pytest.fixture
def store(rig: StoreRig) -> RunStore:
    return rig.open()


@pytest.fixture
def owner(store: RunStore) -> Owner:
    return Owner(store)


def looked_at(rig: StoreRig, *run_ids: str) -> tuple[dict[str, LoadedRun], Taken]:
    """What another owner finds: these runs, and the partition, but for what each take changes."""
    store = rig.open()
    loaded = store.load(run_ids)
    taken = store.take(1, str(uuid.uuid4()))
    return loaded, msgspec.structs.replace(taken, token="", epoch=0, now=0, clean=False)


# -- the namespace ---------------------------------------------------------------------------


def test_a_namespace_is_found_again(store: RunStore, name: str) -> None:
    first = store.namespace(name, CLUSTER, 12)
    assert store.namespace(name, CLUSTER, 12) == first
    assert (first.name, first.partitions, first.cluster_id) == (name, 12, CLUSTER)
    assert store.namespace(name + "-other", CLUSTER, 12).ns != first.ns


def test_the_recorded_number_of_partitions_wins_over_more(store: RunStore, name: str) -> None:
    store.namespace(name, CLUSTER, 12)
    assert store.namespace(name, CLUSTER, 24).partitions == 12


def test_fewer_partitions_than_recorded_are_refused(store: RunStore, name: str) -> None:
    store.namespace(name, CLUSTER, 12)
    with pytest.raises(TopicsNotReady, match=r"12 run partitions.*have 6.*raise"):
        store.namespace(name, CLUSTER, 6)


def test_another_cluster_is_refused(store: RunStore, name: str) -> None:
    store.namespace(name, CLUSTER, 12)
    with pytest.raises(TopicsNotReady, match=r"cluster-1.*cluster-2.*another namespace"):
        store.namespace(name, "cluster-2", 12)


def test_namespaces_do_not_see_each_other(rig: StoreRig, name: str) -> None:
    Owner(rig.open()).commit("r")
    other = rig.open()
    other.namespace(name + "-other", CLUSTER, N)
    assert other.load(["r"])["r"].record_version == 0
    assert other.take(1, str(uuid.uuid4())).epoch == 1


# -- taking and releasing ----------------------------------------------------------------------


def test_a_partition_that_nobody_owned(owner: Owner) -> None:
    taken = owner.taken
    assert (taken.partition, taken.token, taken.epoch) == (1, owner.token, 1)
    assert taken.offsets == (UNREAD, UNREAD, UNREAD)
    assert (taken.outbox, taken.outbox_seq, taken.open_attempts, taken.topic_ids) == ([], 0, [], {})
    assert taken.clean


def test_each_take_raises_the_epoch(rig: StoreRig, owner: Owner) -> None:
    assert Owner(rig.open()).epoch == 2
    assert Owner(rig.open(), partition=2).epoch == 1
    assert Owner(rig.open()).epoch == 3


def test_the_new_owner_finds_what_the_old_one_left(rig: StoreRig, owner: Owner) -> None:
    beat = owner.open_attempt("r")
    owner.send(
        Batch(
            partitions=[owner.advance(next=(7, 8, 9), outbox=b"one", topic_ids={"ductor.shop.run-events": "id-1"})],
            runs=[owner.write("r")],
            open_attempts=[beat],
        )
    )
    owner.send(Batch(partitions=[owner.advance(outbox=b"two")]))
    taken = Owner(rig.open()).taken
    assert taken.offsets == (8, 8, 9)
    assert taken.outbox == [(1, b"one"), (2, b"two")]
    assert taken.outbox_seq == 2
    assert taken.topic_ids == {"ductor.shop.run-events": "id-1"}
    assert taken.open_attempts == [beat]


def test_clean_says_how_the_last_owner_left(rig: StoreRig, owner: Owner) -> None:
    second = Owner(rig.open())
    assert not second.taken.clean
    second.store.release(1, second.token, second.epoch)
    third = Owner(rig.open())
    assert third.taken.clean
    second.store.release(1, second.token, second.epoch)  # no longer its own to release
    assert not Owner(rig.open()).taken.clean


def test_a_release_does_not_hinder_the_same_owner(owner: Owner) -> None:
    owner.store.release(1, owner.token, owner.epoch)
    owner.commit("r")


# -- committing runs ---------------------------------------------------------------------------


def test_a_run_is_inserted_then_updated(owner: Owner) -> None:
    owner.commit("r", "s")
    owner.commit(owner.write("r", status="completed", result=b'"done"', closed_at=T0 + 5))
    loaded = owner.store.load(["r", "s", "unknown"])
    assert loaded["r"] == LoadedRun("r", 2, b"header 2", [], [], 1)
    assert loaded["s"] == LoadedRun("s", 1, b"header 1", [b"entry 1"], [], 1)
    assert loaded["unknown"] == LoadedRun("unknown", 0, None, [], [])


def test_a_closed_run_is_loaded_with_its_records_where_they_are_asked_for(owner: Owner) -> None:
    owner.commit("r", "s")
    owner.commit(*(owner.write(run_id, status="failed", closed_at=T0) for run_id in ("r", "s")))
    loaded = owner.store.load(["r", "s"], whole=["s", "unknown"])
    assert loaded["r"].records == []
    assert loaded["s"].records == [b"entry 1", b"entry 2"]


def test_many_runs_are_updated_in_one_batch(owner: Owner) -> None:
    ids = [f"run-{n}" for n in range(50)]
    owner.commit(*ids)
    owner.commit(*ids, "newcomer")
    loaded = owner.store.load([*ids, "newcomer"])
    assert {loaded[run_id].record_version for run_id in ids} == {2}
    assert loaded["newcomer"].record_version == 1


def test_only_the_records_of_the_current_execution_are_loaded(owner: Owner) -> None:
    owner.commit("r")
    owner.commit("r")
    owner.commit(owner.write("r", execution=2, journal_from=3))
    owner.commit(owner.write("r", execution=2, journal_from=3))
    loaded = owner.store.load(["r"])["r"]
    assert (loaded.record_version, loaded.journal_from) == (4, 3)
    assert loaded.records == [b"entry 3", b"entry 4"]


def test_loading_nothing_and_the_same_run_twice(owner: Owner) -> None:
    owner.commit("r")
    assert owner.store.load([]) == {}
    assert list(owner.store.load(["r", "r"])) == ["r"]


def test_commit_tells_the_time(owner: Owner) -> None:
    before = owner.store.ping()
    during = owner.commit("r")
    assert before <= during <= owner.store.ping()


def test_an_empty_batch_moves_only_the_offset(rig: StoreRig, owner: Owner) -> None:
    owner.send(Batch(partitions=[owner.advance(outbox=None)]))
    assert Owner(rig.open()).taken.offsets == (0, UNREAD, UNREAD)


# -- fences and versions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"token": str(uuid.uuid4())}, {"epoch": 7}, {"epoch": 0}, {"previous": (5, UNREAD, UNREAD)}, {"previous": ()}],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_fence_that_does_not_hold_commits_nothing(rig: StoreRig, owner: Owner, wrong: dict[str, object]) -> None:
    owner.commit("r")
    before = looked_at(rig, "r", "new")
    owner = Owner(rig.open())
    owner.versions["r"] = 1
    batch = owner.batch("r", "new", messages=[owner.message("r", "m")])
    batch.partitions = [owner.advance(**wrong)]
    with pytest.raises(OwnershipLost) as caught:
        owner.store.commit(batch)
    assert caught.value.partitions == {1}
    assert looked_at(rig, "r", "new") == before


def test_one_lost_partition_of_two_aborts_both_and_is_named(rig: StoreRig, owner: Owner) -> None:
    other = Owner(owner.store, partition=2)
    Owner(rig.open(), partition=2)
    with pytest.raises(OwnershipLost) as caught:
        owner.store.commit(Batch(partitions=[owner.advance(), other.advance()], runs=[owner.write("r")]))
    assert caught.value.partitions == {2}
    assert Owner(rig.open()).taken.offsets == (UNREAD, UNREAD, UNREAD)


def test_several_partitions_advance_together(rig: StoreRig, owner: Owner) -> None:
    other = Owner(owner.store, partition=0)
    owner.store.commit(Batch(partitions=[owner.advance(), other.advance()], runs=[owner.write("r"), other.write("s")]))
    assert [Owner(rig.open(), partition=p).taken.outbox for p in (0, 1)] == [[(1, b"outbox 1")], [(1, b"outbox 1")]]


def test_the_first_commit_of_two_with_the_same_offsets_wins(owner: Owner) -> None:
    first, second = owner.batch("r"), owner.batch("s")
    owner.store.commit(first)
    with pytest.raises(OwnershipLost):
        owner.store.commit(second)


@pytest.mark.parametrize("expected", [1, 3, 0], ids=["behind", "ahead", "new but known"])
def test_another_version_than_was_read_commits_nothing(rig: StoreRig, owner: Owner, expected: int) -> None:
    owner.commit("r", "good")
    owner.commit("r")
    before = looked_at(rig, "r", "good")
    owner = Owner(rig.open())
    with pytest.raises(RecordVersionConflict) as caught:
        owner.store.commit(owner.batch(owner.write("good", 1), owner.write("r", expected)))
    assert caught.value.run_ids == {"r"}
    assert looked_at(rig, "r", "good") == before


def test_a_version_of_a_run_that_is_not_there(owner: Owner) -> None:
    with pytest.raises(RecordVersionConflict) as caught:
        owner.commit(owner.write("ghost", 4), "r")
    assert caught.value.run_ids == {"ghost"}


def test_the_fence_goes_before_the_version(rig: StoreRig, owner: Owner) -> None:
    owner.commit("r")
    Owner(rig.open())
    with pytest.raises(OwnershipLost):
        owner.commit(owner.write("r", 9))


def test_after_a_conflict_the_rest_can_be_committed(owner: Owner) -> None:
    with pytest.raises(RecordVersionConflict):
        owner.commit(owner.write("r", 3), "s")
    owner.commit("s")
    assert owner.store.load(["s"])["s"].record_version == 1


def test_a_batch_without_the_fence_of_what_it_writes_is_a_bug(owner: Owner) -> None:
    stray: list[dict[str, object]] = [
        {"runs": [owner.write("r", partition=2)]},
        {"messages": [owner.message("r", "m", partition=2)]},
        {"open_attempts": [owner.open_attempt("r", partition=2)]},
        {"consumed": [(2, 1)]},
        {"closed_attempts": [(2, "r", 1, "1")]},
        {"counters": {(2, "fulfil", "running"): 1}},
    ]
    for parts in stray:
        with pytest.raises(InvariantViolation, match="without their fence"):
            owner.store.commit(Batch(partitions=[owner.advance()], **parts))  # type: ignore[arg-type]


def test_locked_runs_are_committed_and_then_free(rig: StoreRig, owner: Owner) -> None:
    owner.commit("r", "s")
    owner.store.lock(["r", "unknown"])
    owner.versions["r"] = owner.store.load(["r"])["r"].record_version
    owner.commit("r")
    owner.commit("r", "s")
    assert Owner(rig.open()).store.load(["r"])["r"].record_version == 3


def test_a_locked_commit_that_fails_frees_and_commits_nothing(rig: StoreRig, owner: Owner) -> None:
    owner.commit("r")
    before = looked_at(rig, "r")
    owner = Owner(rig.open())
    owner.store.lock(["r"])
    with pytest.raises(RecordVersionConflict):
        owner.commit(owner.write("r", 9))
    assert looked_at(rig, "r") == before


# -- messages ----------------------------------------------------------------------------------


def test_messages_are_known_once_applied_or_buffered(owner: Owner) -> None:
    owner.commit(
        "r",
        messages=[
            owner.message("r", "applied"),
            owner.message("r", "applied", kind="command"),
            owner.message("later", "buffered", body=b"b", expires_at=T0),
        ],
    )
    asked = [
        ("r", "signal", "applied"),
        ("r", "command", "applied"),
        ("r", "start", "applied"),
        ("later", "signal", "buffered"),
        ("later", "signal", "other"),
    ]
    assert owner.store.known_messages(asked) == {asked[0], asked[1], asked[3]}
    assert owner.store.known_messages([]) == set()


def test_buffered_messages_are_loaded_in_order_of_arrival(owner: Owner) -> None:
    owner.commit(messages=[owner.message("r", name, body=name.encode(), expires_at=T0 + 1) for name in "zay"])
    owner.commit(messages=[owner.message("r", "b", kind="command", body=b"b", expires_at=T0)])
    loaded = owner.store.load(["r"])["r"]
    assert loaded.record_version == 0
    assert [(m.id, m.kind, m.body, m.expires_at) for m in loaded.buffered] == [
        ("z", "signal", b"z", T0 + 1),
        ("a", "signal", b"a", T0 + 1),
        ("y", "signal", b"y", T0 + 1),
        ("b", "command", b"b", T0),
    ]


def test_a_released_message_is_gone_but_known(owner: Owner) -> None:
    owner.commit(messages=[owner.message("r", name, body=b"b", expires_at=T0) for name in ("one", "two")])
    owner.commit("r", released=[("r", "signal", "one")])
    assert [m.id for m in owner.store.load(["r"])["r"].buffered] == ["two"]
    assert owner.store.known_messages([("r", "signal", "one")]) == {("r", "signal", "one")}


def test_a_message_that_somebody_applied_is_a_conflict_of_its_run(rig: StoreRig, owner: Owner) -> None:
    owner.commit("r", "s", messages=[owner.message("r", "m")])
    before = looked_at(rig, "r", "s")
    owner = Owner(rig.open())
    with pytest.raises(RecordVersionConflict) as caught:
        owner.commit(owner.write("r", 1), owner.write("s", 1), messages=[owner.message("r", "m")])
    assert caught.value.run_ids == {"r"}
    assert looked_at(rig, "r", "s") == before


def test_releasing_what_is_not_buffered_is_a_conflict_of_its_run(owner: Owner) -> None:
    owner.commit("r", messages=[owner.message("r", "m")])
    for key in (("r", "signal", "m"), ("r", "signal", "never")):
        with pytest.raises(RecordVersionConflict) as caught:
            owner.commit("s", released=[key])
        assert caught.value.run_ids == {"r"}
    assert owner.store.load(["s"])["s"].record_version == 0


def test_a_message_buffered_and_released_in_one_batch_is_applied(owner: Owner) -> None:
    owner.commit("r", messages=[owner.message("r", "m", body=b"b", expires_at=T0)], released=[("r", "signal", "m")])
    assert owner.store.load(["r"])["r"].buffered == []
    assert owner.store.known_messages([("r", "signal", "m")]) == {("r", "signal", "m")}


def test_expired_messages_come_oldest_first(owner: Owner) -> None:
    for name, expires_at in (("late", T0 + 9), ("early", T0), ("middle", T0 + 5)):
        owner.commit(messages=[owner.message(f"run-{name}", name, body=b"b", expires_at=expires_at)])
    found = owner.store.expired_messages(1, T0 + 5, 10)
    assert [(run_id, m.id, m.expires_at) for run_id, m in found] == [
        ("run-early", "early", T0),
        ("run-middle", "middle", T0 + 5),
    ]
    assert len(owner.store.expired_messages(1, T0 + 9, 2)) == 2
    assert owner.store.expired_messages(2, T0 + 9, 10) == []


# -- inbox, outbox, attempts -------------------------------------------------------------------


def test_the_inbox_is_first_in_first_out(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one")])
    owner.commit(inbox=[owner.mail("two", tries=3), owner.mail("elsewhere", partition=3)])
    rows = owner.store.inbox(1, 10, T0)
    assert [(r.source, r.kind, r.body, r.tries) for r in rows] == [
        ("one", "child", b"body one", 0),
        ("two", "child", b"body two", 3),
    ]
    assert [r.source for r in owner.store.inbox(1, 1, T0)] == ["one"]
    assert [r.source for r in owner.store.inbox(3, 10, T0)] == ["elsewhere"]


def test_a_delayed_message_waits_for_its_time(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("later", not_before=T0 + 1_000), owner.mail("now")])
    assert [r.source for r in owner.store.inbox(1, 10, T0 + 999)] == ["now"]
    found = owner.store.inbox(1, 10, T0 + 1_000)
    assert {(r.source, r.not_before) for r in found} == {("later", T0 + 1_000), ("now", None)}


def test_a_source_that_is_there_is_left_alone(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one"), owner.mail("one", body=b"again")])
    owner.commit(inbox=[owner.mail("one", body=b"and again")])
    assert len(owner.store.inbox(1, 10, T0)) == 1
    owner.commit(inbox=[owner.mail("one", partition=2)])
    assert len(owner.store.inbox(2, 10, T0)) == 1


def test_a_consumed_message_is_gone(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one"), owner.mail("two")])
    first, second = owner.store.inbox(1, 10, T0)
    owner.commit("r", consumed=[(1, first.id)])
    assert owner.store.inbox(1, 10, T0) == [second]


def test_a_message_that_somebody_consumed_means_that_the_partition_is_lost(rig: StoreRig, owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one"), owner.mail("two")])
    first, second = owner.store.inbox(1, 10, T0)
    owner.commit(consumed=[(1, first.id)])
    with pytest.raises(OwnershipLost) as caught:
        owner.commit("r", consumed=[(1, second.id), (1, first.id)])
    assert caught.value.partitions == {1}
    assert owner.store.inbox(1, 10, T0) == [second]
    assert owner.store.load(["r"])["r"].record_version == 0


def test_confirmed_outbox_rows_are_dropped(rig: StoreRig, owner: Owner) -> None:
    for _ in range(3):
        owner.commit()
    owner.send(Batch(partitions=[owner.advance(confirmed=2, outbox=None)]))
    taken = Owner(rig.open()).taken
    assert taken.outbox == [(3, b"outbox 3")]
    assert taken.outbox_seq == 3


def test_the_sequence_stays_when_all_is_confirmed(rig: StoreRig, owner: Owner) -> None:
    owner.commit()
    owner.send(Batch(partitions=[owner.advance(confirmed=1, outbox=None)]))
    assert (Owner(rig.open()).taken.outbox, Owner(rig.open()).taken.outbox_seq) == ([], 1)


def test_open_attempts_are_kept_up_to_date_and_closed(rig: StoreRig, owner: Owner) -> None:
    token = str(uuid.uuid4())
    owner.commit("r", open_attempts=[owner.open_attempt("r"), owner.open_attempt("r", node_id="2", token=token)])
    beat = owner.open_attempt("r", generation=2, beat_at=T0 + 3_000, worker="host-2", details=None)
    owner.commit(open_attempts=[beat])
    by_node: dict[str, OpenAttempt] = {a.node_id: a for a in Owner(rig.open()).taken.open_attempts}
    assert by_node["1"] == beat
    assert by_node["2"].token == token
    owner = Owner(rig.open())
    owner.commit(closed_attempts=[(1, "r", 1, "1"), (1, "r", 1, "never opened")])
    assert [a.node_id for a in Owner(rig.open()).taken.open_attempts] == ["2"]


def test_what_is_opened_and_closed_in_one_batch_is_closed(rig: StoreRig, owner: Owner) -> None:
    owner.commit("r", open_attempts=[owner.open_attempt("r")])
    beats = [owner.open_attempt("r", beat_at=T0 + n) for n in (1, 2)]
    owner.commit(open_attempts=[*beats, owner.open_attempt("r", node_id="2")], closed_attempts=[(1, "r", 1, "1")])
    assert [a.node_id for a in Owner(rig.open()).taken.open_attempts] == ["2"]


def test_the_last_of_two_beats_in_one_batch_counts(rig: StoreRig, owner: Owner) -> None:
    owner.commit(open_attempts=[owner.open_attempt("r", beat_at=T0 + n) for n in (1, 2)])
    assert [a.beat_at for a in Owner(rig.open()).taken.open_attempts] == [T0 + 2]


def test_a_late_line_is_written_once_a_finished_one_must_be_new(owner: Owner) -> None:
    owner.commit("r", attempts=[owner.attempt("r"), owner.attempt("r", "finished"), owner.attempt("r", "late")])
    owner.commit(attempts=[owner.attempt("r", "late", outcome="failed")])
    for phase in ("dispatched", "finished"):
        with pytest.raises(InvariantViolation):
            owner.commit("r", attempts=[owner.attempt("r", phase)])
    assert owner.store.load(["r"])["r"].record_version == 1


def test_a_payload_is_kept_once(owner: Owner) -> None:
    owner.commit(payloads=[("p1", b"large")])
    owner.commit(payloads=[("p1", b"large"), ("p2", b"larger")])


# -- poison ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["nul \0 here", "lone \ud800 surrogate"], ids=["nul", "surrogate"])
def test_a_row_that_cannot_be_stored_is_found_and_nothing_lands(rig: StoreRig, owner: Owner, bad: str) -> None:
    def runs() -> list[RunWrite]:
        return [owner.write(f"run-{n}", reason=bad if n == 5 else "") for n in range(9)]

    before = looked_at(rig, "run-0", "run-5")
    owner = Owner(rig.open())
    with pytest.raises(PoisonedRun) as caught:
        owner.commit(*runs())
    assert caught.value.run_id == "run-5"
    assert looked_at(rig, "run-0", "run-5") == before
    owner = Owner(rig.open())
    owner.commit(*(run for run in runs() if run.run_id != "run-5"))
    assert owner.store.load(["run-0"])["run-0"].record_version == 1


def test_poison_in_what_stands_beside_a_run(owner: Owner) -> None:
    parts: list[dict[str, object]] = [
        {"attempts": [owner.attempt("bad", error=b"x", worker="\0")]},
        {"messages": [owner.message("bad", "\0")]},
        {"open_attempts": [owner.open_attempt("bad", worker="\0")]},
        {"messages": [owner.message("bad", "m", body=b"b", expires_at=10**17)]},
    ]
    for part in parts:
        with pytest.raises(PoisonedRun) as caught:
            owner.commit("r", "s", "bad", **part)
        assert caught.value.run_id == "bad"
    owner.commit("r", "s", "bad")


def test_a_number_out_of_range_is_poison(owner: Owner) -> None:
    for changes in ({"execution": 2**31}, {"wake_at": 10**18}, {"closed_at": 2**62}):
        with pytest.raises(PoisonedRun) as caught:
            owner.commit("r", owner.write("bad", **changes))
        assert caught.value.run_id == "bad"


def test_an_id_that_cannot_be_stored_is_nobodys(owner: Owner) -> None:
    owner.commit("r")
    loaded = owner.store.load(["r", "a\0b", "\udfff"])
    assert [loaded[run_id].record_version for run_id in ("r", "a\0b", "\udfff")] == [1, 0, 0]
    assert owner.store.known_messages([("r", "signal", "\0"), ("\ud800", "signal", "m")]) == set()
    owner.store.lock(["r", "a\0b"])


# -- what a partition has to do ----------------------------------------------------------------


def test_due_runs_are_paged_by_id(owner: Owner) -> None:
    owner.commit(
        owner.write("a", wake_at=T0 + 5),
        owner.write("b", wake_at=T0 + 6),
        owner.write("c", wake_at=T0),
        owner.write("d"),
        owner.write("e", wake_at=T0, closed_at=T0, status="completed"),
        owner.write("f", wake_at=T0 + 1),
    )
    assert owner.store.due_runs(1, T0 + 5, 10, "") == [("a", T0 + 5), ("c", T0), ("f", T0 + 1)]
    assert owner.store.due_runs(1, T0 + 5, 2, "") == [("a", T0 + 5), ("c", T0)]
    assert owner.store.due_runs(1, T0 + 5, 2, "c") == [("f", T0 + 1)]
    assert owner.store.due_runs(2, T0 + 5, 2, "") == []


def test_open_and_suspended_runs_are_paged_by_id(owner: Owner) -> None:
    owner.commit(
        owner.write("a"),
        owner.write("b", status="suspended", version="2"),
        owner.write("c", status="completed", closed_at=T0),
        owner.write("d", status="suspended"),
    )
    assert owner.store.open_runs(1, 10, "") == ["a", "b", "d"]
    assert owner.store.open_runs(1, 2, "a") == ["b", "d"]
    assert owner.store.suspended_runs(1, 1, "") == [("b", "fulfil", "2")]
    assert owner.store.suspended_runs(1, 10, "b") == [("d", "fulfil", "1")]


def test_definitions_are_declared_once(store: RunStore) -> None:
    store.declare([("fulfil", "1", "digest-a"), ("fulfil", "1", "digest-a"), ("fulfil", "2", "digest-b")])
    store.declare([("fulfil", "1", "digest-a")])
    store.declare([])


# -- the connection ----------------------------------------------------------------------------


def test_reconnect_gives_the_same_store(owner: Owner) -> None:
    owner.commit("r")
    owner.store.reconnect()
    owner.commit("r")
    assert owner.store.load(["r"])["r"].record_version == 2
