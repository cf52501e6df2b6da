"""What a client reads of its runs: the outcome of the execution that it asks for, out of real rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from servers import PostgresServer
from store_rigs import POSTGRES, T0, Owner, PostgresRig, migrated_database, postgres_label, postgres_rig
from support import fresh_name

from ductor_stream.engine.events import (
    AnyEvent,
    CommandReceived,
    Continued,
    Failure,
    Forked,
    OnConflict,
    RunStarted,
)
from ductor_stream.engine.state import Completed, Failed, Record, encode_records
from ductor_stream.errors import StoreUnavailable
from ductor_stream.outcomes import REJECTED, Outcome, Question
from ductor_stream.store.outcomes import OutcomeReader
from ductor_stream.store.reader import RunReader


@pytest.fixture(scope="module", params=POSTGRES, ids=postgres_label)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    def session() -> PostgresServer:
        found: PostgresServer = request.getfixturevalue("postgres")
        return found

    with migrated_database(request.param, tmp_path_factory.mktemp("store"), session) as url:
        yield url


@pytest.fixture
def rig(database: str) -> Iterator[PostgresRig]:
    with postgres_rig(database) as made:
        yield made


@pytest.fixture
def owner(rig: PostgresRig) -> Owner:
    return Owner(rig.open())


@pytest.fixture
def reader(rig: PostgresRig, owner: Owner) -> Iterator[OutcomeReader]:
    reader = OutcomeReader(rig.dsn, rig.name)
    yield reader
    reader.close()


def start(start_id: str, on_conflict: OnConflict = "use_existing") -> RunStarted:
    return RunStarted("fulfil", "1", b"null", start_id, on_conflict)


def entry(*records: Record) -> bytes:
    return encode_records(list(records))


def begun(execution: int, event: RunStarted, *more: Record) -> Sequence[Record]:
    return [Record(execution, 1, T0, event, []), *more]


def ended(execution: int, seq: int, *decisions: Completed | Failed, event: AnyEvent | None = None) -> Record:
    return Record(execution, seq, T0, event or CommandReceived("cancel", "c1"), list(decisions))


def test_runs_that_are_not_there_are_not_in_the_answer(reader: OutcomeReader) -> None:
    assert reader.outcomes([Question("nobody"), Question("nobody", "s1"), Question("\0"), Question("\ud800")]) == {}
    assert reader.outcomes([]) == {}


def test_a_namespace_that_no_coordinator_has_made_yet_is_no_error(rig: PostgresRig) -> None:
    other = OutcomeReader(rig.dsn, fresh_name("shop"))
    assert other.outcomes([Question("r")]) == {}
    other.close()


def test_many_runs_in_one_answer(reader: OutcomeReader, owner: Owner) -> None:
    owner.commit(
        owner.write("open", status="suspended", reason="bug: oops", entry=entry(*begun(1, start("s1")))),
        owner.write("done", status="completed", result=b'"r-77"', closed_at=T0),
        owner.write(
            "failed", status="failed", closed_at=T0, reason="CardDeclined",
            error=b'{"code":"user","type":"CardDeclined","message":"no","retryable":false,"details":{"a":1}}',
        ),
    )  # fmt: skip
    failure = Failure("user", "CardDeclined", "no", retryable=False, details=b'{"a":1}')
    assert reader.outcomes([Question("open"), Question("done"), Question("failed"), Question("nobody")]) == {
        Question("open"): Outcome("open", 1, "suspended", "fulfil", "1", reason="bug: oops"),
        Question("done"): Outcome("done", 1, "completed", "fulfil", "1", b'"r-77"'),
        Question("failed"): Outcome("failed", 1, "failed", "fulfil", "1", failure=failure, reason="CardDeclined"),
    }


def test_the_start_that_began_the_run_is_answered_with_the_run(reader: OutcomeReader, owner: Owner) -> None:
    owner.commit(
        owner.write("r", status="completed", result=b"1", closed_at=T0, entry=entry(*begun(1, start("s1", "reject")))),
        messages=[owner.message("r", "s1", kind="start")],
    )
    mine, late = Question("r", "s1"), Question("r", "s2")
    assert reader.outcomes([mine, late])[mine].status == "completed"
    # A start that was not applied yet is not answered by what is there from before.
    assert late not in reader.outcomes([mine, late])


def test_a_refused_start_is_told(reader: OutcomeReader, owner: Owner) -> None:
    owner.commit(owner.write("r", entry=entry(*begun(1, start("s1")))))
    refused = Record(1, 2, T0, start("s2", "reject"), None)
    owner.commit(owner.write("r", entry=entry(refused)), messages=[owner.message("r", "s2", kind="start")])
    answers = reader.outcomes([Question("r", "s2"), Question("r")])
    assert answers[Question("r", "s2")].status == REJECTED
    assert answers[Question("r")].status == "running"


def test_starts_whose_execution_was_followed_by_others(reader: OutcomeReader, owner: Owner) -> None:
    """s1 completed, s2 failed, s3 was replaced while it ran, s4 is what the row says."""
    failure = Failure("user", "Oops", "no")
    executions = [
        begun(1, start("s1", "restart_if_closed"), ended(1, 2, Completed(b"1"))),
        begun(2, start("s2", "restart_if_closed"), ended(2, 2, Failed(failure))),
        begun(3, start("s3", "restart_if_closed")),
        begun(4, start("s4", "terminate_existing")),
    ]
    for execution, records in enumerate(executions, 1):
        owner.commit(
            owner.write("r", execution=execution, journal_from=execution, entry=entry(*records)),
            messages=[owner.message("r", f"s{execution}", kind="start")],
        )
    questions = [Question("r", f"s{n}") for n in range(1, 5)]
    answers = reader.outcomes(questions)
    assert [answers[question].execution for question in questions] == [1, 2, 3, 4]
    assert [answers[question].status for question in questions] == ["completed", "failed", "terminated", "running"]
    assert (answers[questions[0]].result, answers[questions[1]].failure) == (b"1", failure)
    assert answers[questions[2]].reason == "replaced by another start"


def continued() -> Continued:
    return Continued("fulfil", "1", b"null", [], None, {}, None)


def test_a_start_whose_run_goes_on_as_new_is_answered_by_its_last_execution(
    reader: OutcomeReader, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s1 continues twice; s2 fails and is tried again, which completes."""
    owner.commit(
        owner.write("r", entry=entry(*begun(1, start("s1", "reject")))),
        messages=[owner.message("r", "s1", kind="start")],
    )
    for execution in (2, 3):
        first = Record(execution, 1, T0, continued(), [])
        owner.commit(owner.write("r", execution=execution, journal_from=execution, entry=entry(first)))
    question = Question("r", "s1")
    assert reader.outcomes([question])[question].execution == 3
    # The history of a run that goes on for long is read once, not at each look.
    monkeypatch.setattr(RunReader, "history", None)
    assert reader.outcomes([question])[question].status == "running"
    monkeypatch.undo()

    failed = ended(4, 2, Failed(Failure("user", "Oops", "no")))
    owner.commit(
        owner.write(
            "r",
            execution=4,
            journal_from=4,
            status="failed",
            entry=entry(*begun(4, start("s2", "restart_if_closed")), failed),
        ),
        messages=[owner.message("r", "s2", kind="start")],
    )
    forked = Record(5, 2, T0, Forked(4, 1, "retry", "c1", "", []), [Completed(b"2")])
    owner.commit(owner.write("r", execution=5, journal_from=4, status="completed", result=b"2", entry=entry(forked)))
    questions = [Question("r", "s1"), Question("r", "s2")]
    answers = reader.outcomes(questions)
    assert [(answers[q].execution, answers[q].status) for q in questions] == [(3, "terminated"), (5, "completed")]


def test_an_unreachable_database_is_told_and_a_lost_connection_is_opened_again(
    reader: OutcomeReader, owner: Owner, rig: PostgresRig
) -> None:
    owner.commit("r")
    assert reader.outcomes([Question("r")])[Question("r")].status == "running"
    rig.run(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'ductor-stream reader%%'"
    )
    with pytest.raises(StoreUnavailable):
        reader.outcomes([Question("r")])
    assert reader.outcomes([Question("r")])[Question("r")].status == "running"
    with pytest.raises(StoreUnavailable):
        OutcomeReader("host=127.0.0.1 port=1 dbname=x user=x", "shop").outcomes([Question("r")])
