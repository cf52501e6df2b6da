"""What this and earlier releases wrote is read, rebuilt and replayed; a newer format is refused (protocol 19).

See ``histories`` for what is in the files and how those of a new release are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ductor_stream.engine.events import AnyEvent, CarriedSignal, Continued, StartRepeated
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.state import (
    FORMAT,
    PLAIN_FORMAT,
    AnyDecision,
    AnyFact,
    Header,
    Held,
    Node,
    NodeKind,
    NodeStatus,
    Record,
    RunState,
    SignalArrived,
    UnknownFormat,
    decode_header,
    decode_records,
    encode_header,
    encode_records,
    state_bytes,
)
from ductor_stream.engine.tick import rebuild, replay
from unit.engine.histories import CURRENT, GOLDEN, HISTORIES, Golden, buggy, counts, fulfil, golden_of
from unit.engine.programs import workflow

FILES = sorted(GOLDEN.glob("*/*.bin"))
NEWEST = [path for path in FILES if path.parent == CURRENT]
REMEDY = (
    "stored bytes have changed: readers of this release cannot rely on the last one's; raise FORMAT or mend the code"
)
FUNCTIONS = {
    "completed": fulfil,
    "continued_and_retried": counts,
    "signals_in_place": counts,
    "suspended_by_a_bug": buggy(),
}


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def golden(path: Path) -> Golden:
    return msgspec.msgpack.decode(path.read_bytes(), type=Golden)


def records(path: Path) -> list[Record]:
    return [record for entry in golden(path).entries for record in decode_records(entry)]


def stored_state(raw: bytes) -> RunState:
    header, nodes, signals, held = msgspec.msgpack.decode(
        raw, type=tuple[Header, list[Node], list[SignalArrived], list[Held]]
    )
    return RunState(header, {node.node_id: node for node in nodes}, signals, held)


def test_each_history_has_its_file() -> None:
    assert {path.stem for path in NEWEST} == set(HISTORIES), "run unit.engine.histories.write() for a new release"


# -- every release ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=label)
def test_stored_runs_are_rebuilt_as_they_were(path: Path) -> None:
    header = decode_header(golden(path).header)
    built = rebuild(header.run_id, lineage(records(path), header.execution))
    built.header.lifecycle_seq = header.lifecycle_seq  # it counts over executions
    expected = stored_state(golden(path).state)
    assert built.header == expected.header == header
    assert built.nodes == expected.nodes
    assert (built.signals, built.held) == (expected.signals, expected.held)


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in FUNCTIONS], ids=label)
def test_stored_runs_are_replayed_by_todays_planner(path: Path) -> None:
    """A new release numbers places, draws numbers and orders decisions as the one on which the run began."""
    definition = workflow(FUNCTIONS[path.stem], takes_input=True, input_type=Any)
    header = decode_header(golden(path).header)
    for execution in range(1, header.execution + 1):
        kept = lineage(records(path), execution)
        if not isinstance(kept[-1].event, Continued):
            assert replay(definition, header.run_id, kept) is None


# -- this release -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", HISTORIES)
def test_this_release_writes_byte_for_byte_what_is_stored(name: str) -> None:
    assert golden_of(HISTORIES[name]()) == (CURRENT / f"{name}.bin").read_bytes(), REMEDY


@pytest.mark.parametrize("path", NEWEST, ids=label)
def test_what_is_read_is_written_again_as_the_same_bytes(path: Path) -> None:
    found = golden(path)
    assert encode_header(decode_header(found.header)) == found.header
    assert [encode_records(decode_records(entry)) for entry in found.entries] == found.entries
    assert state_bytes(stored_state(found.state)) == found.state


def test_the_histories_hold_every_kind_of_event_fact_and_decision() -> None:
    kept = [record for path in NEWEST for record in records(path)]
    states = [stored_state(golden(path).state) for path in NEWEST]
    assert {type(record.event) for record in kept} == set(get_args(AnyEvent)) - {StartRepeated}, "which changes nothing"
    assert {type(d) for record in kept for d in record.decisions or ()} == set(get_args(AnyDecision))
    assert {type(held.fact) for state in states for held in state.held} == set(get_args(AnyFact))
    assert {node.kind for path in NEWEST for node in _created(path)} == set(get_args(NodeKind))
    assert any(record.parked and record.parked.stack for record in kept)
    carried = [r.event.signals for r in kept if isinstance(r.event, Continued)]
    assert any(isinstance(signal, CarriedSignal) for signals in carried for signal in signals)


def _created(path: Path) -> list[Any]:
    return [d for record in records(path) for d in record.decisions or () if hasattr(d, "kind")]


# -- the format number ------------------------------------------------------------------------


def test_the_format_number_comes_first_in_both() -> None:
    numbers = {path.stem: [msgspec.msgpack.decode(entry)[0] for entry in golden(path).entries] for path in NEWEST}
    assert {msgspec.msgpack.decode(golden(path).header)[0] for path in NEWEST} == {PLAIN_FORMAT}
    assert set(numbers.pop("signals_in_place")) == {PLAIN_FORMAT, FORMAT}
    assert {number for found in numbers.values() for number in found} == {PLAIN_FORMAT}


@pytest.mark.parametrize("ahead", [1, 7, 10**9])
def test_a_newer_format_is_refused_whatever_follows(ahead: int) -> None:
    """A coordinator that is too old does not tick that run; the message says what to do."""
    for rest in ([], ["anything", {"at": "all"}, 3]):
        with pytest.raises(UnknownFormat, match=f"format {FORMAT + ahead}, this release reads up to {FORMAT}: deploy"):
            decode_header(msgspec.msgpack.encode([FORMAT + ahead, *rest]))
    for rest in (None, {"records": []}):
        with pytest.raises(UnknownFormat, match=f"format {FORMAT + ahead}, this release reads up to {FORMAT}: deploy"):
            decode_records(msgspec.msgpack.encode([FORMAT + ahead, rest]))


@pytest.mark.parametrize("status", get_args(NodeStatus))
def test_every_status_of_a_node_can_be_stored(status: NodeStatus) -> None:
    node = Node("1", "step", "charge", status, 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(node), type=Node) == node
