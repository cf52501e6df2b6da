"""Loads the SQL of this package: every query lives in ``sql/queries/*.sql`` under a header that describes it.

A header is three comment lines, then the statement up to the next header::

    -- name: load_runs
    -- purpose: rows, records and buffered messages of many runs at once
    -- index: eec_workflow_run_pkey, eec_workflow_transition_pkey

``index`` names the indexes that the statement must use, or ``none`` with the reason; tests hold it to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files

import msgspec

from ductor_stream.errors import InvariantViolation

_HEADER = re.compile(r"^-- name: (?P<name>\S+)\n-- purpose: (?P<purpose>.+)\n-- index: (?P<index>.+)\n", re.MULTILINE)
_PART = re.compile(rb"^-- part: (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(rb"%\((\w+)\)b")


class Query(msgspec.Struct, frozen=True):
    """One statement with the header it stands under."""

    name: str
    purpose: str
    index: str
    sql: bytes

    @property
    def indexes(self) -> tuple[str, ...]:
        """Names of the indexes that the statement must use; empty where the header says none."""
        return () if self.index.startswith("none") else tuple(part.strip() for part in self.index.split(","))


def _parse(text: str) -> Iterator[Query]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        yield Query(header["name"], header["purpose"], header["index"], body.strip().removesuffix(";").encode())


@lru_cache(maxsize=1)
def all_queries() -> dict[str, Query]:
    """Every named query by its name."""
    found: dict[str, Query] = {}
    for file in sorted(files(__package__).joinpath("sql/queries").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        for query in _parse(file.read_text(encoding="utf-8")):
            if query.name in found:
                raise InvariantViolation(f"two queries are named {query.name}")
            found[query.name] = query
    return found


def sql(name: str) -> bytes:
    """The statement of that name, as the driver takes it."""
    return all_queries()[name].sql


@lru_cache
def numbered(name: str, parts: frozenset[str]) -> tuple[bytes, tuple[str, ...]]:
    """The statement of that name with ``$1``, ``$2`` … for its parameters, and their names in that order.

    Of what stands behind a line ``-- part: …`` only ``parts`` are in it, and the part ``always``. For
    ``psycopg.RawCursor``: the driver would take a long statement apart again each time that it is executed.
    """
    first, *rest = _PART.split(sql(name))
    text = first + b"".join(body for part, body in zip(*[iter(rest)] * 2) if part.decode() in parts | {"always"})
    names: dict[bytes, int] = {}
    statement = _PARAMETER.sub(lambda found: b"$%d" % names.setdefault(found[1], len(names) + 1), text)
    return statement, tuple(found.decode() for found in names)


def schema_sql() -> str:
    """The whole schema in one piece, as a new database has it after all migrations."""
    return files(__package__).joinpath("sql/schema.sql").read_text(encoding="utf-8")
