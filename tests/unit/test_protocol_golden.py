"""What this release writes, byte for byte, and that it can be read: the records stay on topics for a long time."""

from __future__ import annotations

import json

import pytest
from wire_cases import GOLDEN, TOPICS, FixedRegistry, described, records

from ductor_stream.ports import Outgoing, Received
from ductor_stream.protocol.inbound import ForRun, InboundDecoder
from ductor_stream.protocol.lifecycle import LifecycleReader
from ductor_stream.protocol.worker import WorkerCodec

RECORDS = dict(records())
REMEDY = "a changed message is a changed contract; for a new one run: python tests/wire_cases.py"


def test_there_is_a_golden_file_for_each_record_and_none_without() -> None:
    files = {path.name for path in GOLDEN.iterdir()} - {"records.json"}
    assert files == set(RECORDS), REMEDY


@pytest.mark.parametrize("name", RECORDS)
def test_values_are_written_byte_for_byte(name: str) -> None:
    assert RECORDS[name].value == (GOLDEN / name).read_bytes(), REMEDY


def test_keys_headers_topics_and_partitions_are_written_as_before() -> None:
    about = json.loads((GOLDEN / "records.json").read_text("utf-8"))
    assert {name: described(record) for name, record in RECORDS.items()} == about, REMEDY


def read(record: Outgoing, value: bytes) -> object:
    """Whoever reads that topic, reading these bytes."""
    registry = FixedRegistry()
    codec = WorkerCodec(registry=registry)
    if record.topic == TOPICS.run_lifecycle:
        return LifecycleReader(registry).decode(record.key, value, record.headers)
    if record.topic == TOPICS.attempt_control:
        return codec.decode_stop(record.key, value, record.headers)
    if TOPICS.queue_of(record.topic):
        return codec.decode_task(record.key, value, record.headers)
    short = TOPICS.short(record.topic)
    assert short is not None
    message = InboundDecoder(TOPICS, registry).decode(Received(short, 0, 0, record.key, value, record.headers), "tid")
    return message.event if isinstance(message, ForRun) else message


@pytest.mark.parametrize(
    "name", [name for name in RECORDS if name.endswith(".json") and not name.startswith("dead-letter")]
)
def test_all_forms_of_a_golden_record_say_the_same(name: str) -> None:
    record = RECORDS[name]
    found = read(record, (GOLDEN / name).read_bytes())
    for form in ("avro", "registry"):
        other = name.removesuffix("json") + form
        assert other not in RECORDS or read(record, (GOLDEN / other).read_bytes()) == found
