"""A record's value -> the struct of its message: by the first byte JSON, Avro, or Confluent's format.

Raises DataError only, whatever the bytes are; TransientError when a schema registry has to be asked and is away.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from ductor_stream.errors import DataError
from ductor_stream.protocol import avro, json_text
from ductor_stream.protocol.limits import MAX_NESTING, MAX_RECORD_BYTES
from ductor_stream.protocol.messages import AttemptFinished, WireMessage, type_of
from ductor_stream.protocol.reading_avro import AvroReader, Datum
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.vocabulary import TOPIC_OF_TYPE

_JSON = frozenset(b"{ \t\r\n")


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
        self._avro = AvroReader(registry, nesting, catalog)

    def read(self, value: bytes) -> WireMessage:
        """The message in a record's value."""
        if len(value) > MAX_RECORD_BYTES:
            raise DataError("oversized", f"the record has {len(value):,} bytes, {MAX_RECORD_BYTES:,} are the limit")
        if value[:1] == b"{":
            return self._read_json(value)
        if (datum := self._avro.datum(value)) is not None:
            return self._of(datum)
        if value and value[0] in _JSON:
            return self._read_json(value)
        raise DataError(
            "undecodable", f"neither a JSON object nor Avro: it begins with {value[:8].hex(' ') or 'nothing'}"
        )

    def _of(self, datum: Datum) -> WireMessage:
        struct = self._structs.get(datum.form.type)
        if struct is None:
            raise self._misplaced(datum.form.type)
        return self._avro.convert(datum, struct)

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
