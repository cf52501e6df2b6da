"""The read side on real Postgres: what people ask for, and the checks that a namespace kept its promises."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from store_rigs import (
    T0,
    Owner,
    PostgresRig,
    database_fixture,
    rig_fixture,
)

from ductor_stream.cli.surroundings import surroundings
from ductor_stream.config import load
from ductor_stream.engine.events import Proceed, RunStarted
from ductor_stream.engine.state import FORMAT, Header, Record, RunState, UnknownFormat, encode_header, encode_records
from ductor_stream.errors import StoreUnavailable
from ductor_stream.ports import InboxRow, Received
from ductor_stream.protocol.inbox import encode_event, encode_received
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import Offence, OpenRun, OpenVersion, PutOff

database = database_fixture()
rig = rig_fixture()


@pytest.fixture
def owner(rig: PostgresRig) -> Owner:
    return Owner(rig.open())


@pytest.fixture
def reader(rig: PostgresRig, owner: Owner) -> Iterator[RunReader]:
    with RunReader(rig.dsn, rig.name) as made:
        yield made


def entry(seq: int) -> bytes:
    event = RunStarted(workflow="fulfil", version="1", input=b"{}", start_id="s-1")
    return encode_records([Record(execution=1, seq=seq, now=T0 + seq, event=event, decisions=[])])


def number_of(rig: PostgresRig) -> int:
    ((ns,),) = rig.rows("select ns from eec_namespace where name = %s", rig.name)
    return int(ns)


# -- inputs that wait -----------------------------------------------------------------------------


def put_off(owner: Owner, run_id: str, until: int | None, tries: int) -> InboxRow:
    """A record for the run, that waits."""
    body = encode_received(Received("run-events", owner.partition, 17, run_id.encode(), b"{}", []))
    return owner.mail(f"t/{run_id}", kind="event", body=body, not_before=until, tries=tries)


def test_inputs_of_a_run_that_wait_in_its_inbox(reader: RunReader, owner: Owner) -> None:
    """Its own alone, whatever else waits there; what one run has for another counts too."""
    owner.commit(owner.write("a"), owner.write("b"))
    [a, b] = [run for run in map(reader.find_run, ("a", "b")) if run is not None]
    assert (reader.put_off(a), reader.put_off(b)) == (None, None)
    told = owner.mail("c", kind="engine", body=encode_event("a", Proceed(1)), not_before=T0 + 9_000, tries=2)
    owner.commit(inbox=[put_off(owner, "a", T0 + 5_000, 1), put_off(owner, "b", None, 4), told])
    assert reader.put_off(a) == PutOff(2, 2, T0 + 9_000)
    assert reader.put_off(b) == PutOff(1, 4, None)


def test_where_the_inbox_cannot_be_read_the_rest_is_told(rig: PostgresRig, owner: Owner) -> None:
    state = RunState(Header(FORMAT, "a", "fulfil", "1", 1, "running", 4, T0, 2, T0, b"{}"), {})
    owner.commit(owner.write("a"))
    with RunReader(rig.dsn, rig.name) as reader:
        row = reader.find_run("a")
        assert row is not None
        rig.run("alter table eec_inbox rename to eec_hidden")
        try:
            assert surroundings(reader, row, state, {}, load({})).put_off is None
        finally:
            rig.run("alter table eec_hidden rename to eec_inbox")


# -- versions ------------------------------------------------------------------------------------


def test_open_runs_are_counted_by_version_and_status(reader: RunReader, owner: Owner, rig: PostgresRig) -> None:
    assert (reader.open_versions(), reader.declared()) == ([], [])
    owner.commit(
        owner.write("a", started_at=T0 + 5),
        owner.write("b", started_at=T0 + 3),
        owner.write("c", status="paused"),
        owner.write("d", status="completed", closed_at=T0 + 9),
    )
    Owner(rig.open(), 2).commit("e")
    assert reader.open_versions() == [
        OpenVersion("fulfil", "1", "paused", 1, T0),
        OpenVersion("fulfil", "1", "running", 3, T0),
    ]
    rig.open().declare([("fulfil", "1", "one"), ("fulfil", "2", "two")])
    assert [(each.version, each.digest) for each in reader.declared()] == [("1", "one"), ("2", "two")]


# -- runs --------------------------------------------------------------------------------------


def test_a_run_as_its_row_has_it(reader: RunReader, owner: Owner) -> None:
    header = Header(FORMAT, "r", "fulfil", "1", 1, "completed", 4, T0, 2, T0, b"{}")
    owner.commit(owner.write("r", status="completed", result=b'"done"', closed_at=T0 + 9, header=encode_header(header)))
    run = reader.find_run("r")
    assert run is not None
    assert (run.run_id, run.workflow, run.version, run.status, run.execution) == ("r", "fulfil", "1", "completed", 1)
    assert (run.record_version, run.partition, run.wake_at) == (1, 1, None)
    assert (run.started_at, run.updated_at, run.closed_at) == (T0, T0, T0 + 9)
    assert (run.result, run.error, run.reason) == (b'"done"', None, "")
    assert run.header == header
    assert reader.find_run("unknown") is None
    assert reader.find_run("not \0 storable") is None


def test_runs_are_listed_newest_first_page_by_page(reader: RunReader, owner: Owner) -> None:
    starts = {"a": 3, "b": 1, "c": 3, "d": 2, "e": 3}
    owner.commit(*(owner.write(run_id, started_at=T0 + start) for run_id, start in starts.items()))
    pages = []
    last = None
    while page := reader.list_runs(limit=2, before=last):
        pages.append([run.run_id for run in page])
        last = page[-1]
    assert pages == [["a", "c"], ["e", "d"], ["b"]]


def test_runs_are_listed_by_status_and_workflow(reader: RunReader, owner: Owner) -> None:
    owner.commit(
        owner.write("a"),
        owner.write("b", status="suspended"),
        owner.write("c", workflow="refund"),
        owner.write("d", workflow="refund", status="suspended"),
    )
    assert [run.run_id for run in reader.list_runs(status="suspended")] == ["b", "d"]
    assert [run.run_id for run in reader.list_runs(workflow="refund")] == ["c", "d"]
    assert [run.run_id for run in reader.list_runs(status="suspended", workflow="refund")] == ["d"]
    assert reader.list_runs(status="failed") == []


def test_the_newest_open_runs(reader: RunReader, owner: Owner) -> None:
    starts = {"a": 1, "b": 3, "c": 3, "d": 2}
    owner.commit(*(owner.write(run_id, started_at=T0 + start) for run_id, start in starts.items()))
    owner.commit(owner.write("e", status="completed", started_at=T0 + 4, closed_at=T0 + 9))
    assert [run.run_id for run in reader.open_runs(3)] == ["b", "c", "d"]
    assert reader.open_runs(1) == [OpenRun("b", "fulfil", "1")]


def test_attempts_from_dispatch_to_result(reader: RunReader, owner: Owner) -> None:
    owner.commit(
        "r",
        attempts=[
            owner.attempt("r"),
            owner.attempt("r", "finished", outcome="failed", error=b"{}", worker="host-1", at=T0 + 5),
            owner.attempt("r", "late", outcome="completed", at=T0 + 9),
            owner.attempt("r", generation=2, attempt=2, at=T0 + 7),
        ],
    )
    first, second = reader.attempts("r")
    assert (first.node_id, first.generation, first.dispatched_at, first.finished_at) == ("1", 1, T0, T0 + 5)
    assert (first.outcome, first.error, first.worker, first.late_at, first.late_outcome) == (
        "failed",
        b"{}",
        "host-1",
        T0 + 9,
        "completed",
    )
    assert (second.generation, second.attempt, second.finished_at, second.outcome) == (2, 2, None, None)


def test_beats_of_attempts_in_flight(reader: RunReader, owner: Owner) -> None:
    owner.commit("r", "s", open_attempts=[owner.open_attempt("r", beat_at=T0 + 3), owner.open_attempt("s")])
    run = reader.find_run("r")
    assert run is not None
    ((beat),) = reader.beats(run)
    assert (beat.node_id, beat.heard_at, beat.beat_at, beat.worker, beat.details) == ("1", T0, T0 + 3, "host-1", b"{}")


def test_history_names_the_commit_of_each_transition(rig: PostgresRig, reader: RunReader, owner: Owner) -> None:
    owner.commit(owner.write("r", entry=entry(1)))
    second = Owner(rig.open())
    second.versions["r"] = 1
    second.commit(second.write("r", entry=entry(2)))
    history = reader.history("r")
    assert [(e.record_version, e.epoch, e.at, e.execution) for e in history] == [(1, 1, T0, 1), (2, 2, T0 + 1, 1)]
    assert history[0].txid < history[1].txid
    assert [e.records[0].seq for e in history] == [1, 2]
    assert isinstance(history[0].records[0].event, RunStarted)
    assert [e.record_version for e in reader.history("r", after=1)] == [2]
    assert [e.record_version for e in reader.history("r", limit=1)] == [1]
    assert reader.history("unknown") == []


def test_history_of_a_newer_release_says_so(reader: RunReader, owner: Owner) -> None:
    owner.commit(owner.write("r", entry=b"\x92\x63\x90"))
    with pytest.raises(UnknownFormat, match="format 99"):
        reader.history("r")


def test_counts_over_all_partitions(rig: PostgresRig, reader: RunReader, owner: Owner) -> None:
    other = Owner(rig.open(), partition=2)
    owner.commit(counters={(1, "fulfil", "running"): 2, (1, "fulfil", "failed"): 1})
    other.commit(counters={(2, "fulfil", "running"): 3})
    owner.commit(counters={(1, "fulfil", "failed"): -1})
    assert reader.counts() == {("fulfil", "running"): 5}


def test_waiting_for_the_end_of_a_run(rig: PostgresRig, owner: Owner) -> None:
    pauses: list[float] = []

    def sleep(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 3:
            owner.commit(owner.write("r", status="completed", closed_at=T0))

    owner.commit("r")
    with RunReader(rig.dsn, rig.name, sleep=sleep) as reader:
        run = reader.wait_closed("r", 60)
        assert run is not None
        assert run.status == "completed"
        assert pauses == sorted(pauses)
        assert reader.wait_closed("r", 0) == run
        assert reader.wait_closed("unknown", 0) is None


def test_a_namespace_that_is_not_there_yet_reads_as_empty(rig: PostgresRig) -> None:
    with RunReader(rig.dsn, rig.name + "-later") as reader:
        assert (reader.find_run("r"), reader.list_runs(), reader.counts()) == (None, [], {})
        assert reader.consistency(["r"]).lost == ["r"]
        store = rig.open()
        store.namespace(rig.name + "-later", "cluster-1", 4)
        Owner(store).commit("r")
        assert reader.find_run("r") is not None


def test_a_reader_cannot_write(reader: RunReader) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        reader._connection.execute("create table t ()")


def test_a_reader_finds_its_way_back(rig: PostgresRig, reader: RunReader, owner: Owner) -> None:
    owner.commit("r")
    rig.run("select pg_terminate_backend(%s)", reader._connection.info.backend_pid)
    with pytest.raises(StoreUnavailable):
        reader.find_run("r")
    assert reader.find_run("r") is not None


# -- the consistency report --------------------------------------------------------------------


@pytest.fixture
def finished(owner: Owner) -> Owner:
    """Three runs that went well."""
    for run_id in ("a", "b", "c"):
        owner.commit(run_id, attempts=[owner.attempt(run_id)])
        owner.commit(run_id, attempts=[owner.attempt(run_id, "finished", outcome="failed")])
        owner.commit(run_id, attempts=[owner.attempt(run_id, generation=2)])
        done = owner.write(run_id, status="completed", closed_at=T0)
        owner.commit(done, attempts=[owner.attempt(run_id, "finished", generation=2, outcome="completed")])
    return owner


def test_all_is_well(reader: RunReader, finished: Owner) -> None:
    finished.commit(finished.write("d"), attempts=[finished.attempt("a", "late", outcome="completed")])
    report = reader.consistency(["a", "b", "c", "d"])
    assert report.ok
    assert (report.runs, report.open_runs, report.transitions, report.attempts) == (4, 1, 13, 6)
    assert report.late_results == 1


def test_a_run_that_should_be_there_is_lost(reader: RunReader, finished: Owner) -> None:
    report = reader.consistency(["a", "missing", "b"])
    assert not report.ok
    assert (report.lost, report.advanced_twice) == (["missing"], [])


DAMAGE = {
    "record_versions not dense": "update eec_workflow_run set record_version = 5 where ns = %s and run_id = 'b'",
    "no transitions": "delete from eec_workflow_transition where ns = %s and run_id = 'b'",
    "two transitions of one commit": (
        "update eec_workflow_transition set txid = '7' where ns = %s and run_id = 'b' and record_version > 2"
    ),
    "a transition of an older epoch after one of a newer": (
        "update eec_workflow_transition set epoch = 9 where ns = %s and run_id = 'b' and record_version = 2"
    ),
    "two accepted results of one node": (
        "update eec_workflow_step_attempt set outcome = 'completed' "
        "where ns = %s and run_id = 'b' and phase = 'finished'"
    ),
    "a result without a dispatch": (
        "delete from eec_workflow_step_attempt where ns = %s and run_id = 'b' and phase = 'dispatched'"
    ),
}


@pytest.mark.parametrize("check", DAMAGE)
def test_a_run_that_advanced_twice_is_named(rig: PostgresRig, reader: RunReader, finished: Owner, check: str) -> None:
    rig.run(DAMAGE[check], number_of(rig))
    report = reader.consistency()
    assert not report.ok
    assert report.advanced_twice == [Offence(check, "b")]
    assert report.lost == []


def test_a_run_whose_row_is_gone_is_lost(rig: PostgresRig, reader: RunReader, finished: Owner) -> None:
    rig.run("delete from eec_workflow_run where ns = %s and run_id = 'b'", number_of(rig))
    assert reader.consistency().lost == ["b"]


def test_a_gap_in_the_middle_is_found(rig: PostgresRig, reader: RunReader, finished: Owner) -> None:
    rig.run("delete from eec_workflow_transition where ns = %s and run_id = 'c' and record_version = 2", number_of(rig))
    assert reader.consistency().advanced_twice == [Offence("record_versions not dense", "c")]
