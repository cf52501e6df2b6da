"""Messages -> a record's value, in the form that is configured."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Raw

from ductor_stream.errors import InvalidConfig
from ductor_stream.protocol import avro
from ductor_stream.protocol.messages import WireMessage, type_of
from ductor_stream.protocol.registry import SchemaRegistry

Format = Literal["json", "avro", "registry"]
FORMATS: tuple[Format, ...] = ("json", "avro", "registry")

_encoder = msgspec.json.Encoder()


class Writer:
    """Writes messages as JSON, Avro single objects, or in Confluent's format. Raises InvalidConfig for another form."""

    def __init__(self, format: Format = "json", registry: SchemaRegistry | None = None) -> None:
        if format not in FORMATS:
            raise InvalidConfig(f"format {format!r}: use one of {', '.join(FORMATS)}")
        if format == "registry" and registry is None:
            raise InvalidConfig("format registry: configure a schema registry")
        self.content_type = "application/json" if format == "json" else "application/avro"
        self._format = format
        self._registry = registry
        self._prefixes: dict[str, bytes] = {}

    def write(self, message: WireMessage) -> bytes:
        """The value of a record. Raises TransientError where the registry has to be asked first and is away."""
        return self.write_as(type_of(message), message)

    def write_as(self, type: str, message: msgspec.Struct) -> bytes:
        """The same of a struct whose JSON does not say its type. Raises TransientError."""
        if self._format == "json":
            return _encoder.encode(message)
        form = avro.catalog().current(type)
        prefix = self._prefixes.get(form.type)
        if prefix is None:
            prefix = self._prefixes[form.type] = self._prefix(form)
        return prefix + avro.write(form, _plain(message))

    def _prefix(self, form: avro.Form) -> bytes:
        if self._registry is None or self._format == "avro":
            return form.header
        return b"\0" + self._registry.schema_id(form.name, form.text).to_bytes(4, "big")


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields that are there, as Avro takes them: user values as bytes, what is missing left to its default."""
    found: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        field = getattr(struct, name)
        if isinstance(field, Raw):
            field = bytes(field) or None
        elif isinstance(field, msgspec.Struct):
            field = _plain(field)
        elif isinstance(field, tuple):
            field = list(field)
        if field is not None:
            found[name] = field
    return found
