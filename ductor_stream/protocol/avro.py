"""The Avro form of each message: schemas out of ``schemas/*.avsc``, and single-object encoding.

A record is ``C3 01``, the CRC-64-AVRO fingerprint of its writer's schema (eight bytes, little endian), then the
datum. Writers' schemas that this release knows are the current ones and those in ``schemas/previous/``
(``<type>@<anything>.avsc``); the datum is resolved from the writer's schema to ours, so that
fields that one side does not know take their defaults or are skipped. Fields of Avro type ``bytes`` hold JSON.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

SINGLE_OBJECT = b"\xc3\x01"
HEADER_BYTES = 10


class Form(msgspec.Struct, frozen=True):
    """One message type in Avro. ``text`` is the schema as it stands in its file, without white space."""

    type: str
    name: str
    schema: Any
    text: str
    header: bytes
    """What stands before each datum of it: the marker and the fingerprint."""


def form_of(type: str, schema: Mapping[str, Any]) -> Form:
    """The form of a message type. Raises fastavro's SchemaParseException for what is no Avro schema."""
    parsed: Any = fastavro.parse_schema(dict(schema))
    canonical = to_parsing_canonical_form(parsed)
    # fastavro gives the fingerprint's bytes in the order in which they are sent (little endian).
    header = SINGLE_OBJECT + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    return Form(type, parsed["name"], parsed, json.dumps(schema, separators=(",", ":")), header)


class Catalog:
    """The schemas that a process knows: one to write and read each type, and older or newer ones of other writers."""

    def __init__(self, current: Iterable[Form], others: Iterable[Form] = ()) -> None:
        self._current = {form.type: form for form in current}
        self._by_name = {_short(form.name): form for form in self._current.values()}
        self._writers = {form.header: form for form in (*others, *self._current.values())}

    def current(self, type: str) -> Form:
        """The form in which this release writes and reads a type."""
        return self._current[type]

    def writer(self, header: bytes) -> Form | None:
        """The form whose marker and fingerprint these ten bytes are, or None."""
        return self._writers.get(header)

    def named(self, name: str) -> Form | None:
        """The current form of a record of that name (in any Avro namespace), or None."""
        return self._by_name.get(_short(name))

    def __iter__(self) -> Iterator[Form]:
        return iter(self._current.values())


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def schemas_path() -> Path:
    """Where the ``.avsc`` files are: inside the installed package, else at the top of the source tree."""
    installed = Path(__file__).with_name("schemas")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "schemas"


def load(path: Path) -> Catalog:
    """Read the schemas of a folder; the name of a file is the type of its message."""
    current = [form_of(file.stem, json.loads(file.read_text("utf-8"))) for file in sorted(path.glob("*.avsc"))]
    previous = sorted((path / "previous").glob("*.avsc"))
    others = [form_of(file.stem.partition("@")[0], json.loads(file.read_text("utf-8"))) for file in previous]
    return Catalog(current, others)


@functools.cache
def catalog() -> Catalog:
    """The schemas that this release ships."""
    return load(schemas_path())


def write(form: Form, fields: Mapping[str, Any]) -> bytes:
    """The bare datum; fields that are missing take the schema's defaults."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, form.schema, fields)
    return out.getvalue()


def read(datum: bytes, writer: Any, reader: Form) -> dict[str, Any]:
    """The fields of a datum, resolved to the reader's schema. Raises ValueError for what is not exactly one datum."""
    stream = io.BytesIO(datum)
    try:
        found = fastavro.schemaless_reader(stream, writer, reader.schema)
    except Exception as error:
        # Hostile bytes make the reader raise a dozen kinds of errors (EOF, index, overflow, unicode, resolution).
        raise ValueError(f"{error.__class__.__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("the datum is no record")  # noqa: TRY004 (a fault of the bytes, not of the caller)
    if left := len(datum) - stream.tell():
        raise ValueError(f"{left} bytes are left over after the datum")
    return found
