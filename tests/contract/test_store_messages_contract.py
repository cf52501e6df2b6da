"""What every ``RunStore`` does with messages, inbox, outbox and attempts, and with rows that it cannot store."""

from __future__ import annotations

import uuid

import pytest
from store_rigs import (
    MEMORY,
    T0,
    Owner,
    StoreRig,
    database_fixture,
    looked_at,
    rig_fixture,
)

from ductor_stream.errors import (
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
)
from ductor_stream.ports import Batch, OpenAttempt, RunStore, RunWrite

database = database_fixture(MEMORY)
rig = rig_fixture()


@pytest.fixture
def store(rig: StoreRig) -> RunStore:
    return rig.open()


@pytest.fixture
def owner(store: RunStore) -> Owner:
    return Owner(store)


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
    assert owner.store.known_messages(asked) == dict.fromkeys([asked[0], asked[1], asked[3]], "approved")
    assert owner.store.known_messages([]) == {}


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
    assert owner.store.known_messages([("r", "signal", "one")]) == {("r", "signal", "one"): "approved"}


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
    assert owner.store.known_messages([("r", "signal", "m")]) == {("r", "signal", "m"): "approved"}


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


def test_a_message_that_waits_on_keeps_its_place(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one"), owner.mail("two")])
    first, second = owner.store.inbox(1, 10, T0)
    owner.commit("r", deferred=[(1, first.id, T0 + 1_000, 3)])
    assert owner.store.inbox(1, 10, T0) == [second]
    owner.commit(inbox=[owner.mail("three")])
    found = owner.store.inbox(1, 10, T0 + 1_000)
    assert [(r.source, r.tries) for r in found] == [("one", 3), ("two", 0), ("three", 0)]


def test_what_was_put_off_is_told_due_or_not(owner: Owner) -> None:
    owner.commit(
        inbox=[
            owner.mail("new"),
            owner.mail("later", not_before=T0 + 1_000),
            owner.mail("tried", tries=1),
            owner.mail("record", kind="produce", not_before=T0),
            owner.mail("elsewhere", partition=2, tries=1),
        ]
    )
    found = owner.store.put_off(1, 10, 0)
    assert [row.source for row in found] == ["later", "tried"]
    assert owner.store.put_off(1, 1, 0) == found[:1]
    assert owner.store.put_off(1, 10, found[0].id) == found[1:]


def test_a_message_that_waits_on_and_is_gone_means_that_the_partition_is_lost(owner: Owner) -> None:
    owner.commit(inbox=[owner.mail("one")])
    (first,) = owner.store.inbox(1, 10, T0)
    owner.commit(consumed=[(1, first.id)])
    with pytest.raises(OwnershipLost) as caught:
        owner.commit("r", deferred=[(1, first.id, None, 1)])
    assert caught.value.partitions == {1}
    assert owner.store.load(["r"])["r"].record_version == 0


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
    assert owner.store.known_messages([("r", "signal", "\0"), ("\ud800", "signal", "m")]) == {}
    owner.store.lock(["r", "a\0b"])
