"""The Avro form: fingerprints by the specification, evolution in both directions, and the schema registry."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro.schema import to_parsing_canonical_form
from wire_cases import RUN_ID, TOPICS, FixedRegistry, records

from ductor_stream.errors import DataError, InvalidConfig, TransientError
from ductor_stream.ports import Received
from ductor_stream.protocol import avro, lifecycle, messages
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.reading import Reader
from ductor_stream.protocol.registry import ConfluentRegistry
from ductor_stream.protocol.vocabulary import TOPIC_OF_TYPE
from ductor_stream.protocol.writing import Writer

IDENTITY = {"run_id", "execution", "node_id", "generation", "workflow", "step", "name", "to_node", "outcome", "seq"}
STRUCTS: dict[str, Any] = {messages.type_of(each): each for found in messages.BY_TOPIC.values() for each in found}
STRUCTS |= {lifecycle.SCHEMA: lifecycle.LifecycleData}
FORMS = list(avro.catalog())
GOLDEN_RECORDS = dict(records())


def crc_64_avro(text: bytes) -> int:
    """The algorithm as it stands in the Avro specification."""
    empty = 0xC15D213AA4D7A795
    table = []
    for entry in range(256):
        fp = entry
        for _ in range(8):
            fp = (fp >> 1) ^ (empty & -(fp & 1))
        table.append(fp)
    fp = empty
    for byte in text:
        fp = (fp >> 8) ^ table[(fp ^ byte) & 0xFF]
    return fp


def schema_of(form: avro.Form) -> dict[str, Any]:
    return json.loads(form.text)  # type: ignore[no-any-return]


def datum(form: avro.Form) -> tuple[bytes, dict[str, Any]]:
    """A datum of that type out of the golden records, and its fields."""
    name = next(
        name
        for name in (
            f"{form.type}-full.avro",
            f"{form.type.removeprefix('run.')}-failed.avro",
            f"{form.type}-failed.avro",
            f"{form.type}.avro",
        )
        if name in GOLDEN_RECORDS
    )
    body = GOLDEN_RECORDS[name].value[avro.HEADER_BYTES :]
    return body, avro.read(body, form.schema, form)


# -- the schemas ----------------------------------------------------------------------------


def test_every_message_has_a_schema_and_every_schema_a_message() -> None:
    assert {form.type for form in FORMS} == {*TOPIC_OF_TYPE, lifecycle.SCHEMA} == set(STRUCTS)


def test_schemas_are_found_in_the_source_tree_and_put_into_the_wheel_where_they_are_looked_for() -> None:
    root = Path(avro.__file__).parents[2]
    assert avro.schemas_path() == root / "schemas"
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    installed = Path(avro.__file__).with_name("schemas").relative_to(root)
    assert wheel["force-include"]["schemas"] == str(installed)


def test_the_fingerprint_is_that_of_the_specification() -> None:
    assert crc_64_avro(b'"null"') == 0x63DD24E7CC258F8A
    for form in FORMS:
        canonical = to_parsing_canonical_form(form.schema)
        assert form.header == b"\xc3\x01" + crc_64_avro(canonical.encode()).to_bytes(8, "little")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.type)
def test_every_field_that_is_not_identity_has_a_default(form: avro.Form) -> None:
    for field in schema_of(form)["fields"]:
        assert field["name"] in IDENTITY or "default" in field
        assert field.get("doc")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.type)
def test_schema_and_struct_have_the_same_fields(form: avro.Form) -> None:
    assert {field["name"] for field in schema_of(form)["fields"]} == set(STRUCTS[form.type].__struct_fields__)


# -- evolution ------------------------------------------------------------------------------


def with_more(form: avro.Form) -> avro.Form:
    schema = schema_of(form)
    schema["fields"].insert(1, {"name": "added", "type": ["null", "string"], "default": None})
    schema["fields"].append({"name": "appended", "type": "long", "default": 7})
    return avro.form_of(form.type, schema)


def with_less(form: avro.Form) -> Iterator[tuple[str, avro.Form]]:
    for number, field in enumerate(schema_of(form)["fields"]):
        if "default" in field:
            schema = copy.deepcopy(schema_of(form))
            del schema["fields"][number]
            yield field["name"], avro.form_of(form.type, schema)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.type)
def test_a_field_that_only_one_side_knows_does_no_harm(form: avro.Form) -> None:
    body, fields = datum(form)
    newer = with_more(form)
    written = avro.write(newer, {**fields, "added": "x", "appended": 9})
    assert avro.read(written, newer.schema, form) == fields
    assert avro.read(body, form.schema, newer) == {**fields, "added": None, "appended": 7}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.type)
def test_each_field_that_has_a_default_can_be_removed_and_come_back(form: avro.Form) -> None:
    body, fields = datum(form)
    defaults = {field["name"]: field.get("default") for field in schema_of(form)["fields"]}
    for name, older in with_less(form):
        kept = {key: value for key, value in fields.items() if key != name}
        assert avro.read(body, form.schema, older) == kept
        assert avro.read(avro.write(older, kept), older.schema, form) == {**fields, name: defaults[name]}


def test_records_of_a_previous_schema_are_read_by_their_fingerprint(tmp_path: Path) -> None:
    form = avro.catalog().current("run.signal")
    older = dict(with_less(form))["signal_id"]
    (tmp_path / "previous").mkdir()
    (tmp_path / "run.signal.avsc").write_text(form.text)
    (tmp_path / "previous" / "run.signal@0.9.avsc").write_text(older.text)
    value = older.header + avro.write(older, {"run_id": "r", "name": "approved", "payload": b"true"})
    message = Reader("run-events", (messages.RunSignal,), catalog=avro.load(tmp_path)).read(value)
    assert isinstance(message, messages.RunSignal)
    assert (message.name, bytes(message.payload), message.signal_id) == ("approved", b"true", None)
    with pytest.raises(DataError) as caught:
        Reader("run-events", (messages.RunSignal,)).read(value)
    assert caught.value.reason == "unknown_schema"


# -- what is refused ------------------------------------------------------------------------


def refused(value: bytes, registry: Any = None, topic: Any = "run-events") -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        InboundDecoder(TOPICS, registry).decode(Received(topic, 0, 0, RUN_ID.encode(), value, []), "tid")
    return caught.value.reason, str(caught.value)


def signal(**fields: Any) -> bytes:
    form = avro.catalog().current("run.signal")
    return form.header + avro.write(form, {"run_id": RUN_ID, "name": "n", **fields})


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"1 2", b'1,"name":"forged"', b"\xff", b'"\\ud800"', b"[" * 100_000, b"NaN"]
)
def test_user_values_have_to_be_json(payload: bytes) -> None:
    assert refused(signal(payload=payload))[0] == "undecodable"


def test_fields_are_checked_as_in_json() -> None:
    assert refused(signal(name="a b"))[0] == "invalid_field"
    assert refused(signal(signal_id=""))[0] == "invalid_field"
    assert refused(signal(run_id="other"))[0] == "run_id_mismatch"
    assert refused(signal(payload=b'"' + b"x" * 900_000 + b'"'))[0] == "oversized"
    beat = avro.catalog().current("attempt.heartbeat")
    body = avro.write(beat, {"run_id": RUN_ID, "execution": -1, "node_id": "3", "generation": 1})
    assert refused(beat.header + body, topic="attempt-results")[0] == "invalid_field"


def test_a_datum_has_to_be_whole_and_alone() -> None:
    value = signal(payload=b"true")
    for end in range(avro.HEADER_BYTES, len(value)):
        assert refused(value[:end])[0] == "undecodable"
    assert "left over" in refused(value + b"\0")[1]
    assert refused(value[:9])[0] == "unknown_schema"


def test_a_type_on_another_topic_is_told_where_it_belongs() -> None:
    reason, message = refused(signal(), topic="wakeups")
    assert reason == "unknown_type" and "its topic is run-events" in message


# -- the registry ---------------------------------------------------------------------------


def mock_registry(name: str) -> ConfluentRegistry:
    return ConfluentRegistry({"url": f"mock://{name}"})


def test_every_message_goes_through_confluents_own_client() -> None:
    registry = mock_registry("all")
    for form in FORMS:
        if form.type == lifecycle.SCHEMA:
            continue
        reader = Reader("here", (STRUCTS[form.type],), registry)
        message = reader.read(form.header + datum(form)[0])
        value = Writer("registry", registry).write(message)
        assert value[0] == 0
        assert Writer().write(reader.read(value)) == Writer().write(message)


def test_subjects_are_the_names_of_the_records() -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://subjects"})
    registry = ConfluentRegistry({"url": "mock://subjects"})
    registry._client = client
    form = avro.catalog().current("task")
    assert registry.schema_id(form.name, form.text) == registry.schema_id(form.name, form.text)
    assert client.get_subjects() == ["ductor.v1.Task"]


def test_a_schema_of_another_namespace_and_with_more_fields_is_read() -> None:
    registry = FixedRegistry()
    newer = schema_of(with_more(avro.catalog().current("run.signal")))
    newer["namespace"] = "com.acme"
    schema_id = registry.schema_id("acme", json.dumps(newer))
    body = avro.write(
        avro.form_of("run.signal", newer), {"run_id": RUN_ID, "name": "n", "payload": b"1", "appended": 3}
    )
    received = Received("run-events", 0, 0, RUN_ID.encode(), b"\0" + schema_id.to_bytes(4, "big") + body, [])
    assert InboundDecoder(TOPICS, registry).decode(received, "tid").event.payload == b"1"  # type: ignore[union-attr]


def test_without_a_registry_or_with_an_unknown_id_the_record_is_refused() -> None:
    assert refused(b"\0\0\0\0\1x")[0] == "unknown_schema"
    assert refused(b"\0\0\0", FixedRegistry())[0] == "undecodable"
    assert refused(b"\0\0\0\0\1x", FixedRegistry())[0] == "unknown_schema"
    assert refused(b"\0\0\0\0\1x", mock_registry("empty"))[0] == "unknown_schema"


@pytest.mark.parametrize(
    "text", ['"null"', '{"type":"enum","name":"E","symbols":["A"]}', "{", '{"type":"record"}', "[]"]
)
def test_a_schema_that_is_none_of_a_record(text: str) -> None:
    registry = FixedRegistry()
    registry.texts[7] = text
    assert refused(b"\0\0\0\0\7x", registry)[0] == "unknown_schema"


def test_a_schema_of_somebody_elses_record() -> None:
    registry = FixedRegistry()
    registry.texts[7] = '{"type":"record","name":"Invoice","fields":[]}'
    assert refused(b"\0\0\0\0\7", registry)[0] == "unknown_type"


def test_a_protobuf_schema_is_not_ours() -> None:
    registry = mock_registry("protobuf")
    found = registry._client.register_schema("s", Schema('syntax = "proto3";', "PROTOBUF"))
    assert registry.schema_text(found) is None


def test_the_registry_is_asked_once_per_schema_and_seldom_for_what_it_does_not_know() -> None:
    registry = FixedRegistry()
    decoder = InboundDecoder(TOPICS, registry)
    known = GOLDEN_RECORDS["run.signal.registry"]
    for _ in range(50):
        decoder.decode(Received("run-events", 0, 0, known.key, known.value, []), "tid")
        with pytest.raises(DataError):
            decoder.decode(Received("run-events", 0, 0, b"r", b"\0\0\0\0\1x", []), "tid")
    assert registry.asked == 2
    for schema_id in range(2, 3_000):
        with pytest.raises(DataError):
            decoder.decode(Received("run-events", 0, 0, b"r", b"\0" + schema_id.to_bytes(4, "big"), []), "tid")
    sizes = [len(reader._avro._unknown) for reader in decoder._readers.values()]
    assert max(sizes) <= 1_024


class Away:
    """A registry's client while the registry cannot be reached."""

    def get_schema(self, schema_id: int) -> Any:
        raise OSError("connection refused")

    register_schema = get_schema


def test_a_registry_that_is_away_is_no_fault_of_the_record() -> None:
    registry = mock_registry("away")
    registry._client = Away()  # type: ignore[assignment]
    with pytest.raises(TransientError, match="connection refused"):
        InboundDecoder(TOPICS, registry).decode(Received("run-events", 0, 0, b"r", b"\0\0\0\0\1x", []), "tid")
    with pytest.raises(TransientError, match="registry"):
        Writer("registry", registry).write(messages.Wakeup(run_id="r"))


def test_options_that_the_client_does_not_understand() -> None:
    with pytest.raises(InvalidConfig, match="registry"):
        ConfluentRegistry({"url": "mock://x", "nonsense": 1})
    with pytest.raises(InvalidConfig, match="registry"):
        ConfluentRegistry({})
