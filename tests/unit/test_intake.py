"""What is taken while somebody looks for a run that kills its owner (protocol 23)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ductor_stream.coordinator import intake as intake_module
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.intake import Intake
from ductor_stream.coordinator.work import Work
from ductor_stream.engine.events import Proceed
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import TransientError
from ductor_stream.ports import InboxRow, Received
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.inbox import encode_event
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

SHOP = Topics("shop")


def intake(rows: dict[int, list[InboxRow]], local: Any = None) -> Intake:
    """One over inboxes that hold these rows, and local attempts."""
    store: Any = SimpleNamespace(inbox=lambda partition, limit, now: rows[partition][:limit])
    clock: Any = SimpleNamespace(monotonic=lambda: 100.0, now=lambda: 1_000)
    nobody: Any = (None, None, None)
    ports, codec = (store, nobody, clock, local), (InboundDecoder(SHOP), nobody, nobody)
    return Intake(CoordinatorConfig(), SHOP, ports, codec, nobody, Metrics(), len(rows))


def taken(limit: int) -> tuple[list[str], set[int]]:
    """The runs whose rows are taken at once, and the partitions whose inbox was looked at."""
    rows = {
        partition: [InboxRow(partition, run_id, "engine", encode_event(run_id, Proceed(1)), id=n) for n in range(2)]
        for partition, run_id in enumerate(("innocent", "killer"))
    }
    work, owned = Work(), dict.fromkeys(rows)
    under_test = intake(rows)
    under_test.limit = limit
    under_test._take_inbox(work, owned)  # type: ignore[arg-type]
    return [entry.run_id for entry in work.entries], set(work.inbox_read)


def test_after_a_death_inputs_come_one_at_a_time_of_all_partitions_together() -> None:
    """Else the run of the first partition is noted for what that of the second one does, and in the end suspended for it."""
    assert taken(1) == (["innocent"], {0})
    assert taken(500) == (["innocent", "innocent", "killer", "killer"], {0, 1})


def test_an_event_of_a_newer_release_waits_for_one_and_its_neighbours_go_on() -> None:
    """It is not lost, it does not end an owner that was rolled back, and it is found again at the next take-over."""
    unknown = msgspec.msgpack.encode(("r1", {"type": "of_tomorrow", "more": 1}))
    rows = [
        InboxRow(0, "one", "engine", unknown, tries=2, id=1),
        InboxRow(0, "two", "engine", encode_event("r2", Proceed(1)), id=2),
    ]
    work, under_test = Work(), intake({0: rows})
    under_test._take_inbox(work, {0: None})  # type: ignore[dict-item]
    assert [entry.run_id for entry in work.entries] == ["r2"]
    assert work.deferred == [(0, 1, 16_000, 2)]
    pages = [[msgspec.structs.replace(rows[0], not_before=16_000)], []]
    under_test._store.put_off = lambda partition, limit, after: pages.pop(0)  # type: ignore[method-assign]
    assert under_test.waiting(0) == {"r1": (0, 16_000)}


def test_rows_of_a_turn_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is one statement, and Postgres reads none over a gigabyte: the rest comes with the next turns."""
    monkeypatch.setattr(intake_module, "_INBOX_BYTES", 100)
    large = encode_event("x" * 60, Proceed(1))
    rows = {partition: [InboxRow(partition, "s", "engine", large, id=n) for n in range(3)] for partition in range(2)}
    under_test, seen = intake(rows), []
    while any(rows.values()):
        work = Work()
        under_test.hint(rows)
        under_test._take_inbox(work, dict.fromkeys(rows))  # type: ignore[arg-type]
        seen.append((work.consumed, {partition: whole for partition, (_, whole) in work.inbox_read.items()}))
        for partition, id in work.consumed:
            rows[partition] = [row for row in rows[partition] if row.id != id]
    assert seen == [
        ([(0, 0), (0, 1)], {0: False}),
        ([(0, 2), (1, 0)], {0: True, 1: False}),
        ([(1, 1), (1, 2)], {0: True, 1: True}),
    ]


def test_a_partition_whose_record_needs_what_is_away_waits_alone() -> None:
    """As with a schema of a registry that does not answer: what was taken of the others goes on."""

    class Decoder(InboundDecoder):
        def decode(self, received: Received, topic_id: str) -> Any:
            if received.value == b"?":
                raise TransientError("schema registry: no answer")
            return super().decode(received, topic_id)

    signal = json.dumps({"type": "run.signal", "run_id": "r", "name": "word", "signal_id": "s"}).encode()
    home = partition_of(b"r", 2)
    mine, other = "run-events", 1 - home
    polled = [
        Received(mine, other, 1, b"x", b"?", ()),
        Received(mine, home, 7, b"r", signal, ()),
        Received(mine, other, 2, b"x", signal, ()),
    ]
    under_test = intake({0: [], 1: []})
    under_test._decoder = Decoder(SHOP)
    work, owned = Work(), {n: SimpleNamespace(offsets=[0, 0, 0], topic_ids={}) for n in range(2)}
    for received in polled:
        under_test._take_record(work, owned, received)  # type: ignore[arg-type]
    assert under_test.stalled() == {other}
    assert under_test.stalled() == set(), "told once"
    del owned[other]
    under_test.let_go(work, owned)  # type: ignore[arg-type]
    assert [entry.run_id for entry in work.entries] == ["r"]
    assert {partition: positions[0] for partition, positions in work.positions.items()} == {home: 8}


def test_what_is_put_off_goes_with_its_partition() -> None:
    work = Work()
    work.deferred = [(0, 1, 5, 0), (1, 2, 5, 0)]
    work.drop({0})
    assert work.deferred == [(1, 2, 5, 0)]


def test_after_a_death_results_of_local_attempts_come_one_at_a_time_too() -> None:
    """They come all at once; those that are not taken yet come with the next turns, and are not asked for again."""
    finished = {"type": "attempt.finished", "execution": 1, "node_id": "1", "generation": 1, "outcome": "completed"}
    told = [[(run_id.encode(), json.dumps(finished).encode()) for run_id in ("innocent", "killer")], []]
    under_test = intake({0: []}, SimpleNamespace(results=lambda timeout: told.pop(0)))
    under_test.limit = 1
    for run_id in ("innocent", "killer"):
        work = Work()
        under_test._take_local(work, {0: None}, 0.0)  # type: ignore[dict-item]
        assert [entry.run_id for entry in work.entries] == [run_id]
    assert told == []
