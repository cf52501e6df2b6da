"""A commit on real Postgres lands as a whole or not at all: each kind of mismatch, with all parts of the statement or few, with either plan."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from store_rigs import (
    T0,
    Owner,
    PostgresRig,
    database_fixture,
    rig_fixture,
)

from ductor_stream.errors import (
    DuctorError,
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
)
from ductor_stream.ports import Batch

database = database_fixture()
rig = rig_fixture()


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def owner(request: pytest.FixtureRequest, rig: PostgresRig) -> Owner:
    """An owner of partition 1 with runs ``r``, ``s``; the planner knows the parameters or does not."""
    store = rig.open()
    store._connection.execute(f"set plan_cache_mode = {request.param}".encode())
    made = Owner(store)
    made.commit(
        "r",
        "s",
        messages=[made.message("r", "applied"), made.message("r", "buffered", body=b"b", expires_at=T0)],
        inbox=[made.mail("one"), made.mail("two")],
        open_attempts=[made.open_attempt("r")],
        counters={(1, "fulfil", "running"): 2},
        attempts=[made.attempt("r")],
    )
    return made


def full(owner: Owner, **changes: Any) -> Batch:
    """A batch that touches every table, and would land."""
    first, second = owner.store.inbox(1, 2, T0)
    batch = owner.batch(
        owner.write("r", status="completed", closed_at=T0),
        owner.write("new"),
        owner.write("s", header=None),
        attempts=[owner.attempt("r", "finished"), owner.attempt("s"), owner.attempt("r", "late")],
        messages=[owner.message("r", "m"), owner.message("later", "m", body=b"b", expires_at=T0)],
        released=[("r", "signal", "buffered")],
        inbox=[owner.mail("three"), owner.mail("four", partition=3)],
        consumed=[(1, first.id), (1, second.id)],
        open_attempts=[owner.open_attempt("s")],
        closed_attempts=[(1, "r", 1, "1")],
        counters={(1, "fulfil", "running"): -1, (1, "fulfil", "completed"): 1},
        payloads=[("p-" + owner.token, b"large")],
    )
    batch.partitions = [owner.advance(confirmed=owner.seq, topic_ids={"t": "id"})]
    return msgspec.structs.replace(batch, **changes)


def one_step(owner: Owner, **changes: Any) -> Batch:
    """A batch of which most parts of the statement are left out, and would land."""
    batch = owner.batch(
        owner.write("r", header=None),
        attempts=[owner.attempt("r", "finished"), owner.attempt("r", node_id="2")],
        closed_attempts=[(1, "r", 1, "1")],
    )
    batch.partitions = [owner.advance(confirmed=owner.seq, topic_ids={"t": "id"})]
    return msgspec.structs.replace(batch, **changes)


PATHS: dict[str, Callable[..., Batch]] = {"full": full, "step": one_step}


@pytest.mark.parametrize("path", PATHS)
def test_without_a_mismatch_each_part_lands(rig: PostgresRig, owner: Owner, path: str) -> None:
    batch = PATHS[path](owner)
    before = rig.everything()
    owner.store.commit(batch)
    after = rig.everything()
    touched = {table for table in before if before[table] != after[table]}
    both = {"eec_partition", "eec_workflow_run", "eec_workflow_transition", "eec_workflow_step_attempt", "eec_outbox"}
    both.add("eec_open_attempt")
    rest = {"eec_workflow_signal", "eec_inbox", "eec_counter", "eec_payload"}
    assert touched == (both | rest if path == "full" else both)


def _runs_moved(owner: Owner, make: Callable[..., Batch]) -> Batch:
    batch = make(owner)
    batch.runs = [msgspec.structs.replace(batch.runs[0], expected=9), *batch.runs[1:]]
    return batch


def _step_moved(owner: Owner, make: Callable[..., Batch]) -> Batch:
    batch = make(owner)
    batch.runs = [*batch.runs[:-1], msgspec.structs.replace(batch.runs[-1], expected=9)]
    return batch


def _fenced(**wrong: Any) -> Callable[[Owner, Callable[..., Batch]], Batch]:
    def made(owner: Owner, make: Callable[..., Batch]) -> Batch:
        batch = make(owner)
        batch.partitions = [msgspec.structs.replace(batch.partitions[0], **wrong)]
        return batch

    return made


def _with(**parts: Any) -> Callable[[Owner, Callable[..., Batch]], Batch]:
    def made(owner: Owner, make: Callable[..., Batch]) -> Batch:
        return make(owner, **{name: part(owner) for name, part in parts.items()})

    return made


MISMATCHES: dict[str, tuple[Callable[[Owner, Callable[..., Batch]], Batch], type[DuctorError]]] = {
    "token": (_fenced(token=str(uuid.uuid4())), OwnershipLost),
    "epoch": (_fenced(epoch=0), OwnershipLost),
    "offsets": (_fenced(previous=(99, 0, 0)), OwnershipLost),
    "version": (_runs_moved, RecordVersionConflict),
    "version of a step": (_step_moved, RecordVersionConflict),
    "poison": (
        _with(attempts=lambda o: [o.attempt("r", "finished", worker="\0")]),
        PoisonedRun,
    ),
    "attempt twice": (_with(attempts=lambda o: [o.attempt("r"), o.attempt("s")]), InvariantViolation),
}

ONLY_FULL: dict[str, tuple[Callable[[Owner, Callable[..., Batch]], Batch], type[DuctorError]]] = {
    "partition without a row": (
        _with(partitions=lambda o: [o.advance(), o.advance(partition=3)]),
        OwnershipLost,
    ),
    "run that exists": (_with(runs=lambda o: [o.write("r", 1), o.write("s", 0)]), RecordVersionConflict),
    "message applied": (_with(messages=lambda o: [o.message("r", "applied")]), RecordVersionConflict),
    "not buffered": (_with(released=lambda o: [("r", "signal", "applied")]), RecordVersionConflict),
    "released twice": (
        _with(released=lambda o: [("r", "signal", "buffered"), ("s", "signal", "x")]),
        RecordVersionConflict,
    ),
    "not in the inbox": (_with(consumed=lambda o: [(1, 10**9)]), OwnershipLost),
    "one run twice": (_with(runs=lambda o: [o.write("r", 1), o.write("r", 1)]), InvariantViolation),
    "a sequence twice": (
        _with(partitions=lambda o: [o.advance(outbox_seq=o.seq)]),
        InvariantViolation,
    ),
}

CASES = [
    *((path, name, *case) for path in PATHS for name, case in MISMATCHES.items()),
    *(("full", name, *case) for name, case in ONLY_FULL.items()),
]


@pytest.mark.parametrize(("path", "name", "spoil", "error"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_mismatch_lands_nothing_at_all(
    rig: PostgresRig,
    owner: Owner,
    path: str,
    name: str,
    spoil: Callable[[Owner, Callable[..., Batch]], Batch],
    error: type[DuctorError],
) -> None:
    batch = spoil(owner, PATHS[path])
    before = rig.everything()
    with pytest.raises(error):
        owner.store.commit(batch)
    assert rig.everything() == before
    owner.store.commit(PATHS[path](owner))


def test_the_commit_is_one_transaction(rig: PostgresRig, owner: Owner) -> None:
    owner.store.commit(full(owner))
    tables = ("eec_partition", "eec_workflow_run", "eec_workflow_transition", "eec_outbox", "eec_inbox", "eec_counter")
    ns = "(select ns from eec_namespace where name = %s)"
    written = {
        rig.rows(f"select max(xmin::text::bigint) from {table} where ns = {ns}", rig.name)[0][0] for table in tables
    }
    assert len(written) == 1
    assert (
        rig.rows(
            f"select distinct txid::text::bigint from eec_workflow_transition where ns = {ns} and run_id = 'new'",
            rig.name,
        )[0][0]
        in written
    )


def test_counters_add_up(rig: PostgresRig, owner: Owner) -> None:
    owner.commit(counters={(1, "fulfil", "running"): 3, (1, "fulfil", "failed"): 0})
    owner.commit(counters={(1, "fulfil", "running"): -1})
    rows = rig.rows(
        "select workflow, status, count from eec_counter where ns = (select ns from eec_namespace where name = %s)",
        rig.name,
    )
    assert rows == [("fulfil", "running", 4)]


def test_moments_and_bytes_survive(rig: PostgresRig, owner: Owner) -> None:
    moment, raw = T0 + 123, bytes(range(256))
    owner.commit(owner.write("r", wake_at=moment, header=raw, entry=raw, result=raw, error=b""))
    ((wake_at, header, result, error),) = rig.rows(
        "select (extract(epoch from wake_at) * 1000)::bigint, state, result, error from eec_workflow_run "
        "where run_id = 'r' and ns = (select ns from eec_namespace where name = %s)",
        rig.name,
    )
    assert (wake_at, bytes(header), bytes(result), bytes(error)) == (moment, raw, raw, b"")
    assert owner.store.load(["r"])["r"].records[-1] == raw
