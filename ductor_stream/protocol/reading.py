"""A record's value -> the struct of its message: by the first byte JSON, Avro, or Confluent's format.

Raises DataError only, whatever the bytes are; TransientError when a schema registry has to be asked and is away.
"""

from __future__ import annotations

from typing import Any, Union

import fastavro
import msgspec
from msgspec import Raw

from ductor_stream.errors import DataError
from ductor_stream.protocol import avro, json_text
from ductor_stream.protocol.limits import MAX_NESTING, MAX_RECORD_BYTES
from ductor_stream.protocol.messages import AttemptFinished, WireMessage, type_of
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.vocabulary import TOPIC_OF_TYPE

_CONFLUENT_BYTES = 5
_JSON = frozenset(b"{ \t\r\n")
_CACHED_SCHEMAS = 1_024  # schema ids are small numbers that a registry gives out; hostile records can name any
_ASK_AGAIN = 1_000  # an unknown id is looked up again after it was seen this often: it may be registered by then


class _Envelope(msgspec.Struct):
    type: Any = None


_envelope = msgspec.json.Decoder(_Envelope)


class _Untyped(WireMessage, frozen=True, tag="", kw_only=True):
    """No message. Beside it even the only type of a topic must be named: alone, msgspec would take it for granted."""


class Reader:
    """Reads the messages that are valid on one topic (``place``). Not thread-safe where a registry is used."""

    def __init__(
        self,
        place: str,
        structs: tuple[type[WireMessage], ...],
        registry: SchemaRegistry | None = None,
        *,
        nesting: int = MAX_NESTING,
        catalog: avro.Catalog | None = None,
    ) -> None:
        self._place = place
        self._structs = {type_of(struct): struct for struct in structs}
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[(*structs, _Untyped)])
        self._nesting = nesting
        self._registry = registry
        self._catalog = catalog
        self._known: dict[int, Any] = {}
        self._unknown: dict[int, int] = {}

    def read(self, value: bytes) -> WireMessage:
        """The message in a record's value."""
        if len(value) > MAX_RECORD_BYTES:
            raise DataError("oversized", f"the record has {len(value):,} bytes, {MAX_RECORD_BYTES:,} are the limit")
        if value[:1] == b"{":
            return self._read_json(value)
        if value.startswith(avro.SINGLE_OBJECT):
            return self._read_single_object(value)
        if value[:1] == b"\0":
            return self._read_confluent(value)
        if value and value[0] in _JSON:
            return self._read_json(value)
        raise DataError(
            "undecodable", f"neither a JSON object nor Avro: it begins with {value[:8].hex(' ') or 'nothing'}"
        )

    # -- JSON -------------------------------------------------------------------------------

    def _read_json(self, value: bytes) -> WireMessage:
        if json_text.too_deep(value, self._nesting):
            raise DataError("undecodable", f"JSON nested deeper than {self._nesting}")
        try:
            value.decode()
            message: WireMessage = self._json.decode(value)
        except msgspec.ValidationError as error:
            raise self._not_valid(value, error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._read_repaired(value, error)
        if isinstance(message, _Untyped):
            raise self._misplaced("")
        return message

    def _read_repaired(self, value: bytes, error: Exception) -> WireMessage:
        """A worker's report of a failure is worth reading even if its text has half a surrogate pair in it."""
        if b"\\ud" in value or b"\\uD" in value:
            try:
                message = self._json.decode(json_text.without_lone_surrogates(value))
            except (msgspec.DecodeError, RecursionError):
                message = None
            if isinstance(message, AttemptFinished) and message.outcome != "completed":
                return message
        raise DataError("undecodable", f"malformed JSON: {error}") from None

    def _not_valid(self, value: bytes, error: msgspec.ValidationError) -> DataError:
        try:
            type = _envelope.decode(value).type
        except msgspec.ValidationError:
            return DataError("undecodable", f"JSON, but no object: {error}")
        except (msgspec.DecodeError, RecursionError) as malformed:
            # The fault that was seen first is one of a field; what comes behind it is no JSON at all.
            return DataError("undecodable", f"malformed JSON: {malformed}")
        if isinstance(type, str) and type in self._structs:
            return DataError("invalid_field", f"{type}: {error}")
        return self._misplaced(type)

    def _misplaced(self, type: object) -> DataError:
        if not isinstance(type, str):
            return DataError("unknown_type", "the record has no type" if type is None else "its type is no text")
        if home := TOPIC_OF_TYPE.get(type):
            return DataError("unknown_type", f"{type} is not valid on {self._place}: its topic is {home}")
        return DataError("unknown_type", f"no type of message is called {type[:100]!r}")

    # -- Avro -------------------------------------------------------------------------------

    def _read_single_object(self, value: bytes) -> WireMessage:
        catalog = self._catalog or avro.catalog()
        writer = catalog.writer(value[: avro.HEADER_BYTES])
        if writer is None:
            raise DataError("unknown_schema", f"no schema has the fingerprint {value[2:10].hex()}")
        return self._read_datum(value[avro.HEADER_BYTES :], writer.schema, catalog.current(writer.type))

    def _read_confluent(self, value: bytes) -> WireMessage:
        if self._registry is None:
            raise DataError(
                "unknown_schema", "the record is in Confluent's format, and no schema registry is configured"
            )
        if len(value) < _CONFLUENT_BYTES:
            raise DataError("undecodable", "truncated: five bytes of Confluent's format were expected")
        schema_id = int.from_bytes(value[1:_CONFLUENT_BYTES], "big")
        writer = self._registered(schema_id, self._registry)
        form = (self._catalog or avro.catalog()).named(writer["name"])
        if form is None:
            raise DataError("unknown_type", f"schema {schema_id} is of {writer['name']}, which is no message of ours")
        return self._read_datum(value[_CONFLUENT_BYTES:], writer, form)

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

    def _read_datum(self, datum: bytes, writer: Any, form: avro.Form) -> WireMessage:
        struct = self._structs.get(form.type)
        if struct is None:
            raise self._misplaced(form.type)
        try:
            fields = self._present(avro.read(datum, writer, form))
            return msgspec.convert({"type": form.type, **fields}, struct)
        except msgspec.ValidationError as error:
            raise DataError("invalid_field", f"{form.type}: {error}") from None
        except ValueError as error:
            raise DataError("undecodable", f"{form.type}: {error}") from None

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
