"""Avro in a record's value, bare or in Confluent's format -> the message's type and its fields.

Raises DataError only, whatever the bytes are; TransientError when a schema registry has to be asked and is away.
"""

from __future__ import annotations

from typing import Any, TypeVar

import fastavro
import msgspec
from msgspec import Raw

from ductor_stream.errors import DataError
from ductor_stream.protocol import avro, json_text
from ductor_stream.protocol.registry import SchemaRegistry

_CONFLUENT_BYTES = 5
_CACHED_SCHEMAS = 1_024  # schema ids are small numbers that a registry gives out; hostile records can name any
_ASK_AGAIN = 1_000  # an unknown id is looked up again after it was seen this often: it may be registered by then

_Message = TypeVar("_Message")


class Datum(msgspec.Struct, frozen=True):
    """What stands behind the marker: ``form`` is ours for its type, ``writer`` the schema that it was written by."""

    form: avro.Form
    writer: Any
    body: bytes


class AvroReader:
    """Not thread-safe where a registry is used. ``nesting`` bounds the JSON in user values."""

    def __init__(self, registry: SchemaRegistry | None, nesting: int, catalog: avro.Catalog | None = None) -> None:
        self._nesting = nesting
        self._registry = registry
        self._given = catalog
        self._known: dict[int, Any] = {}
        self._unknown: dict[int, int] = {}

    def datum(self, value: bytes) -> Datum | None:
        """The datum in a value, None where it is no Avro. It is not read yet."""
        if value.startswith(avro.SINGLE_OBJECT):
            return self._single_object(value)
        return self._confluent(value) if value[:1] == b"\0" else None

    def convert(self, datum: Datum, struct: type[_Message]) -> _Message:
        """The message of a datum."""
        try:
            fields = self._present(avro.read(datum.body, datum.writer, datum.form))
            return msgspec.convert({"type": datum.form.type, **fields}, struct)
        except msgspec.ValidationError as error:
            raise DataError("invalid_field", f"{datum.form.type}: {error}") from None
        except ValueError as error:
            raise DataError("undecodable", f"{datum.form.type}: {error}") from None

    @property
    def _catalog(self) -> avro.Catalog:
        return self._given or avro.catalog()

    def _single_object(self, value: bytes) -> Datum:
        writer = self._catalog.writer(value[: avro.HEADER_BYTES])
        if writer is None:
            raise DataError("unknown_schema", f"no schema has the fingerprint {value[2:10].hex()}")
        return Datum(self._catalog.current(writer.type), writer.schema, value[avro.HEADER_BYTES :])

    def _confluent(self, value: bytes) -> Datum:
        if self._registry is None:
            raise DataError(
                "unknown_schema", "the record is in Confluent's format, and no schema registry is configured"
            )
        if len(value) < _CONFLUENT_BYTES:
            raise DataError("undecodable", "truncated: five bytes of Confluent's format were expected")
        schema_id = int.from_bytes(value[1:_CONFLUENT_BYTES], "big")
        writer = self._registered(schema_id, self._registry)
        form = self._catalog.named(writer["name"])
        if form is None:
            raise DataError("unknown_type", f"schema {schema_id} is of {writer['name']}, which is no message of ours")
        return Datum(form, writer, value[_CONFLUENT_BYTES:])

    def _registered(self, schema_id: int, registry: SchemaRegistry) -> Any:
        if (found := self._known.get(schema_id)) is not None:
            return found
        waits = self._unknown.get(schema_id, 0)
        if waits > 0:
            self._unknown[schema_id] = waits - 1
            raise _unknown_id(schema_id)
        text = registry.schema_text(schema_id)
        schema = None if text is None else _parsed(text)
        if schema is None:
            _remember(self._unknown, schema_id, _ASK_AGAIN)
            raise _unknown_id(schema_id)
        _remember(self._known, schema_id, schema)
        return schema

    def _present(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What the datum says: nulls are left out, bytes are checked to be JSON (else they could smuggle in fields)."""
        found: dict[str, Any] = {}
        for name, field in fields.items():
            if isinstance(field, bytes):
                found[name] = self._value(name, field)
            elif isinstance(field, dict):
                found[name] = self._present(field)
            elif field is not None:
                found[name] = field
        return found

    def _value(self, name: str, text: bytes) -> Raw:
        try:
            return json_text.document(text, self._nesting - 1)
        except ValueError as error:
            raise ValueError(f"{name} holds no JSON: {error}") from None


def _parsed(text: str) -> Any:
    """A registry's schema, or None where it is none of a record."""
    try:
        schema: Any = fastavro.parse_schema(msgspec.json.decode(text))
    except Exception:  # noqa: BLE001 (whatever somebody put there: not Avro, or with references to other subjects)
        return None
    return schema if isinstance(schema, dict) and schema.get("type") == "record" else None


def _remember(cache: dict[int, Any], schema_id: int, value: Any) -> None:
    if len(cache) >= _CACHED_SCHEMAS:
        cache.clear()
    cache[schema_id] = value


def _unknown_id(schema_id: int) -> DataError:
    return DataError("unknown_schema", f"the schema registry has no Avro schema of a record with id {schema_id}")
