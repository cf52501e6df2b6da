"""How a batch becomes parameters: what is folded, what is sorted, and which statement writes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ductor_stream.errors import InvariantViolation
from ductor_stream.ports import (
    AttemptRow,
    Batch,
    InboxRow,
    MessageRow,
    OpenAttempt,
    PartitionAdvance,
    RunWrite,
)
from ductor_stream.store.binding import bind, check_fenced, part_of, run_ids_of
from ductor_stream.store.queries import numbered

T0 = 1_795_000_000_000


def advance(partition: int = 1) -> PartitionAdvance:
    return PartitionAdvance(partition, "token", 1, (0, 0, 0), (1, 0, 0), 4, 5, b"outbox")


def run(run_id: str = "r", expected: int = 1, header: bytes | None = None) -> RunWrite:
    return RunWrite(run_id, 1, expected, "w", "1", 1, "running", header, b"", 1, 1, None, "", None, None, T0, None, T0)


def attempt(run_id: str = "r", phase: str = "finished") -> AttemptRow:
    return AttemptRow(run_id, 1, "1", 1, phase, 1, "s", "q", "", None, "", T0)


def beat(run_id: str = "r", node_id: str = "1", beat_at: int = T0) -> OpenAttempt:
    return OpenAttempt(1, run_id, 1, node_id, 1, None, T0, beat_at)


def values(batch: Batch, name: str) -> list[object]:
    return list(bind(batch, 1)[1][name].values)


PARTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "a step": ({"runs": [run()], "attempts": [attempt()]}, {"steps", "attempts"}),
    "a start": ({"runs": [run(expected=0, header=b"h")]}, {"runs", "created"}),
    "an end": ({"runs": [run(header=b"h")]}, {"runs", "changed"}),
    "both": ({"runs": [run(header=b"h"), run("b", 0, b"h"), run("c")]}, {"runs", "changed", "created", "steps"}),
    "a late result": ({"attempts": [attempt(phase="late")]}, {"late"}),
    "messages": ({"messages": [MessageRow("r", 1, "m", "signal", "n")]}, {"messages"}),
    "released": ({"released": [("r", "signal", "m")]}, {"released"}),
    "inbox": ({"inbox": [InboxRow(1, "s", "k", b"")]}, {"inbox"}),
    "consumed": ({"consumed": [(1, 1)]}, {"consumed"}),
    "deferred": ({"deferred": [(1, 1, None, 2)]}, {"deferred"}),
    "opened": ({"open_attempts": [beat()]}, {"opened"}),
    "closed": ({"closed_attempts": [(1, "r", 1, "1")]}, {"closed"}),
    "counters": ({"counters": {(1, "w", "running"): 1}}, {"counters"}),
    "payloads": ({"payloads": [("p", b"")]}, {"payloads"}),
}


@pytest.mark.parametrize(("given", "parts"), PARTS.values(), ids=PARTS)
def test_the_statement_has_the_parts_that_a_batch_has_rows_for(given: dict[str, Any], parts: set[str]) -> None:
    found, params = bind(Batch(partitions=[advance()], **given), 1)
    assert found == parts
    _, names = numbered("commit", found)
    assert set(params) == set(names)


def test_a_run_without_a_new_header_is_written_narrowly() -> None:
    batch = Batch(partitions=[advance()], runs=[run("whole", header=b"h"), run("step")])
    assert values(batch, "r_run_id") == ["whole"]
    assert values(batch, "s_run_id") == ["step"]


def test_every_part_of_a_batch_is_bound() -> None:
    """A part that is added to Batch must be thought of here."""
    assert {field.name for field in msgspec.structs.fields(Batch)} == {
        "partitions",
        "runs",
        "attempts",
        "messages",
        "released",
        "inbox",
        "consumed",
        "deferred",
        "open_attempts",
        "closed_attempts",
        "counters",
        "payloads",
    }


def test_partitions_inbox_and_payloads_are_sorted() -> None:
    batch = Batch(
        partitions=[advance(3), advance(1), advance(2)],
        inbox=[InboxRow(2, "a", "k", b""), InboxRow(1, "z", "k", b""), InboxRow(1, "a", "k", b"")],
        payloads=[("z", b""), ("a", b"")],
    )
    assert values(batch, "f_partition") == [1, 2, 3]
    rows = list(zip(values(batch, "i_partition"), values(batch, "i_source"), strict=True))
    assert rows == [(1, "z"), (1, "a"), (2, "a")], "in the order in which they were sent, which is that of their ids"
    assert values(batch, "p_id") == ["a", "z"]


def test_without_an_outbox_row_the_sequence_is_not_touched() -> None:
    batch = Batch(partitions=[msgspec.structs.replace(advance(), outbox=None)])
    assert values(batch, "f_seq") == [0]
    assert values(batch, "f_outbox") == [None]


def test_counts_that_do_not_change_are_left_out() -> None:
    batch = Batch(partitions=[advance()], counters={(1, "w", "running"): 0, (1, "w", "failed"): 2})
    assert values(batch, "k_status") == ["failed"]
    assert "counters" not in bind(Batch(partitions=[advance()], counters={(1, "w", "running"): 0}), 1)[0]


def test_a_message_buffered_and_released_is_applied() -> None:
    rows = [MessageRow("r", 1, m, "signal", "n", b"body", T0) for m in ("one", "two")]
    batch = Batch(partitions=[advance()], messages=rows, released=[("r", "signal", "one"), ("r", "signal", "old")])
    assert values(batch, "m_body") == [None, b"body"]
    assert values(batch, "m_expires_at") == [None, T0]
    assert values(batch, "x_id") == ["old"]


def test_of_the_beats_of_a_node_the_last_counts_unless_it_is_closed() -> None:
    batch = Batch(
        partitions=[advance()],
        open_attempts=[beat(beat_at=T0), beat(beat_at=T0 + 1), beat(node_id="2")],
        closed_attempts=[(1, "r", 1, "2")],
    )
    assert values(batch, "o_beat_at") == [T0 + 1]


def test_a_partition_named_twice_is_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="twice"):
        check_fenced(Batch(partitions=[advance(), advance()]))


def test_a_part_of_a_batch_has_all_of_its_runs_and_nothing_else() -> None:
    batch = Batch(
        partitions=[advance()],
        runs=[run("a"), run("b")],
        attempts=[attempt("a"), attempt("b")],
        messages=[MessageRow("a", 1, "m", "signal", "n"), MessageRow("c", 1, "m", "signal", "n")],
        released=[("a", "signal", "x"), ("d", "signal", "x")],
        inbox=[InboxRow(1, "s", "k", b"")],
        consumed=[(1, 1)],
        deferred=[(1, 2, T0, 1)],
        open_attempts=[beat("a"), beat("e")],
        closed_attempts=[(1, "a", 1, "1"), (1, "f", 1, "1")],
        counters={(1, "w", "running"): 1},
        payloads=[("p", b"")],
    )
    assert run_ids_of(batch) == ["a", "b", "c", "d", "e", "f"]
    part = part_of(batch, frozenset({"a"}))
    assert run_ids_of(part) == ["a"]
    assert len(part.runs) == len(part.attempts) == len(part.messages) == len(part.released) == 1
    assert len(part.open_attempts) == len(part.closed_attempts) == 1
    assert (part.inbox, part.consumed, part.deferred, part.counters, part.payloads) == ([], [], [], {}, [])
    (fence,) = part.partitions
    assert (fence.token, fence.epoch, fence.previous, fence.outbox) == ("token", 1, (0, 0, 0), None)
