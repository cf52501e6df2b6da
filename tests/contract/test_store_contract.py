"""What every ``RunStore`` does, whatever it is made of. Each test is a behaviour over the port alone."""

from __future__ import annotations

import uuid

import pytest
from store_rigs import (
    CLUSTER,
    MEMORY,
    T0,
    N,
    Owner,
    StoreRig,
    database_fixture,
    looked_at,
    rig_fixture,
)
from support import fresh_name

from ductor_stream.errors import (
    InvariantViolation,
    OwnershipLost,
    RecordVersionConflict,
    TopicsNotReady,
)
from ductor_stream.ports import UNREAD, Batch, Foldable, Folded, LoadedRun, RunStore

database = database_fixture(MEMORY)
rig = rig_fixture()


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


@pytest.mark.parametrize("others", [[], ["other"]], ids=["alone", "among others"])
def test_a_step_on_the_way_leaves_the_header_as_it_is(owner: Owner, others: list[str]) -> None:
    """Of the row its version, ``wake_at`` and ``updated_at`` change; the journal has the rest."""
    owner.commit(owner.write("r", wake_at=T0 + 9), "other")
    step = owner.write("r", header=None, wake_at=T0 + 5, workflow="ignored", status="ignored", execution=7)
    owner.commit(step, *others)
    assert owner.store.load(["r"])["r"] == LoadedRun("r", 2, b"header 1", [b"entry 1", b"entry 2"], [], 1)
    assert owner.store.due_runs(owner.partition, T0 + 6, 10, "") == [("r", T0 + 5)]
    assert owner.store.open_runs(owner.partition, 10, "", 1_000) == ["other", "r"]


def test_a_page_of_open_runs_is_as_large_as_what_they_are_rebuilt_from(owner: Owner) -> None:
    """What lies before ``journal_from`` does not count; one run is always there."""
    for version in range(3):
        owner.commit(owner.write("b", version, entry=b"x" * 100, journal_from=max(1, version)))
    owner.commit(owner.write("a", entry=b"x" * 50), owner.write("c", entry=b"x"), owner.write("d", entry=b"x"))
    assert owner.store.open_runs(1, 10, "", 251) == ["a", "b", "c"]
    assert owner.store.open_runs(1, 10, "", 250) == ["a", "b"]
    assert owner.store.open_runs(1, 10, "a", 1) == ["b"]


@pytest.mark.parametrize("expected", [1, 3], ids=["behind", "ahead"])
@pytest.mark.parametrize("others", [[], ["good"]], ids=["alone", "among others"])
def test_a_step_of_another_version_commits_nothing(
    rig: StoreRig, owner: Owner, expected: int, others: list[str]
) -> None:
    owner.commit("r", "good")
    owner.commit("r")
    before = looked_at(rig, "r", "good")
    owner = Owner(rig.open())
    with pytest.raises(RecordVersionConflict) as caught:
        owner.store.commit(
            owner.batch(*(owner.write(each, 1) for each in others), owner.write("r", expected, header=None))
        )
    assert caught.value.run_ids == {"r"}
    assert looked_at(rig, "r", "good") == before


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


def test_runs_are_loaded_as_far_as_a_limit_of_bytes_goes(owner: Owner) -> None:
    """Records of the current execution and what waits for it; of a closed run only where it is wanted whole."""
    for run_id, times in (("r", 2), ("s", 3)):
        for _ in range(times):
            owner.commit(run_id)
    owner.commit(owner.write("s", status="completed", closed_at=T0 + 9))
    owner.commit(
        owner.write("t", execution=2, journal_from=1),
        messages=[owner.message("early", "m", body=b"12345", expires_at=T0)],
    )
    ids = ["unknown", "early", "s", "r", "newcomer", "t"]
    for whole in ([], ["s"]):
        everything = owner.store.load(ids, whole)
        assert list(everything) == ids
        size = {r: sum(map(len, run.records)) + sum(len(m.body) for m in run.buffered) for r, run in everything.items()}
        assert (size["early"], size["unknown"], size["r"] > 0, size["s"] > 0) == (5, 0, True, bool(whole))
        for limit in range(sum(size.values()) + 2):
            fit = [r for n, r in enumerate(ids) if not n or sum(size[i] for i in ids[: n + 1]) <= limit]
            assert owner.store.load(ids, whole, limit) == {r: everything[r] for r in fit}
    assert list(owner.store.load(["r", "s"], at_most=0)) == ["r"], "one at least"
    assert set(owner.store.load(["r", "a\0b"], at_most=0)) - {"a\0b"} == {"r"}
    assert owner.store.load([], at_most=0) == {}


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
        {"deferred": [(2, 1, None, 0)]},
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
    assert owner.store.open_runs(1, 10, "", 1_000) == ["a", "b", "d"]
    assert owner.store.open_runs(1, 2, "a", 1_000) == ["b", "d"]
    assert owner.store.open_runs(1, 2, "d", 1_000) == []
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


# -- history ---------------------------------------------------------------------------------


def test_old_transitions_are_folded_and_never_what_a_run_is_rebuilt_from(store: RunStore, owner: Owner) -> None:
    """R10: oldest first, a page at a time, up to where the current execution begins."""
    for version in range(6):
        owner.commit(owner.write("run-1", version, journal_from=4 if version >= 3 else 1))
    page = store.foldable("run-1", 4, 2, 1_000)
    assert (page.folded, [row[0] for row in page.transitions]) == (Folded(), [1, 2])
    assert [row[0] for row in store.foldable("run-1", 4, 10, 1).transitions] == [1], "one that begins within the size"
    fence = (owner.partition, owner.token, owner.epoch)
    first = Folded(2, 1, T0, T0 + 5, {"start": 1, "finish": 1})
    assert store.fold(fence, "run-1", 0, first)
    page = store.foldable("run-1", 4, 2, 1_000)
    assert (page.folded, [row[0] for row in page.transitions]) == (first, [3])
    assert not store.fold(fence, "run-1", 0, Folded(3, 1, T0, T0, {})), "from another place than the last one ended"
    assert not store.fold((fence[0], fence[1], fence[2] + 1), "run-1", 2, Folded(3, 1, T0, T0, {})), (
        "another's partition"
    )
    assert not store.fold(fence, "run-1", 2, Folded(4, 1, T0, T0, {})), "the run is rebuilt from that"
    assert store.fold(fence, "run-1", 2, Folded(3, 1, T0, T0 + 9, {"start": 1, "finish": 2}))
    assert store.foldable("run-1", 4, 2, 1_000) == Foldable(Folded(3, 1, T0, T0 + 9, {"start": 1, "finish": 2}), [])
    assert len(store.load(["run-1"])["run-1"].records) == 3


def test_attempts_of_earlier_executions_go_by_the_page_the_last_ones_first(owner: Owner) -> None:
    """Of an attempt that is cut in two, no result is left without its dispatch."""
    store, fence = owner.store, (owner.partition, owner.token, owner.epoch)
    for execution in (1, 2, 3):
        both = [owner.attempt("r", execution=execution, phase=phase) for phase in ("dispatched", "finished")]
        owner.commit(owner.write("r", execution=execution), attempts=both)
    assert store.drop_attempts((fence[0], fence[1], fence[2] + 1), "r", 3, 10) == 0, "another's partition"
    assert store.drop_attempts(fence, "r", 1, 10) == 0
    assert store.drop_attempts(fence, "r", 3, 3) == 3
    assert store.drop_attempts(fence, "r", 3, 3) == 1
    assert store.drop_attempts(fence, "r", 9, 3) == 2
