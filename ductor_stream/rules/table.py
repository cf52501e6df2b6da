"""Decision tables: rows of conditions and results, each a CEL expression, under one of DMN's hit policies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ductor_stream.engine import values
from ductor_stream.errors import InvalidDefinition, InvalidValue, TerminalError
from ductor_stream.rules.cel import Expression, ExpressionFailed, Language
from ductor_stream.rules.types import fits
from ductor_stream.rules.verdict import Hit, HitPolicy, Verdict
from ductor_stream.shapes import Field, fields_of, shape_of

MAX_ROWS = 1_000
MAX_COLUMNS = 50
"""Rows, and conditions of a row. A table beyond is data, and belongs into a database that a step asks."""

RESULT = "result"
"""The name of the only column of results where the output is no object."""


class Row(msgspec.Struct, frozen=True):
    """A row of a decision table. It hits where each of its conditions is true; without any it always does.

    ``when`` has conditions by column (a column may be left out), ``then`` the results: CEL by field of the output, or
    one expression where the output is no object. A ``default`` row has no conditions and decides when no other hits.
    """

    name: str
    when: Mapping[str, str] = {}
    then: Mapping[str, str] | str = {}
    default: bool = False


class Parts(msgspec.Struct, frozen=True):
    """What a table is made of."""

    name: str
    version: str
    policy: HitPolicy
    input: Any
    output: Any
    rows: Sequence[Row]


class _Row(msgspec.Struct, frozen=True):
    hit: Hit
    when: dict[str, Expression]
    then: dict[str, Expression]


class Table:
    """A table that was checked. Raises InvalidDefinition, which names the row and the column."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.digest = digest_of(parts.policy, [msgspec.to_builtins(row) for row in parts.rows])
        self._language = Language(parts.input)
        shape = shape_of(parts.output)
        fields = fields_of(shape)
        self._single = fields is None
        self._fields = fields if fields is not None else {RESULT: Field(RESULT, shape, True)}
        _check_rows(parts)
        compiled = [(row, self._row(row)) for row in parts.rows]
        self._rows = [made for row, made in compiled if not row.default]
        self._default = next((made for row, made in compiled if row.default), None)

    # -- at the declaration -----------------------------------------------------------------

    def _row(self, row: Row) -> _Row:
        hit = Hit(row.name, dict(row.when))
        when = {column: self._cell(row, column, text) for column, text in row.when.items()}
        for column, cell in when.items():
            if cell.type not in ("BOOL", "DYN"):
                raise _refused(row.name, column, f"a condition is true or false, `{cell.text}` gives {cell.type}")
        return _Row(hit, when, self._results(row))

    def _results(self, row: Row) -> dict[str, Expression]:
        given = {RESULT: row.then} if self._single else row.then
        if not isinstance(given, Mapping):
            raise InvalidDefinition(f"row {row.name!r}: then is an expression for each of {', '.join(self._fields)}")
        if unknown := [column for column in given if column not in self._fields]:
            raise _refused(row.name, unknown[0], f"the output has no such field; it has {', '.join(self._fields)}")
        for name, field in self._fields.items():
            if field.required and name not in given:
                raise _refused(
                    row.name, name, "the row has no result for this field of the output, which has no default"
                )
        cells = {column: self._cell(row, column, text) for column, text in given.items()}
        for column, cell in cells.items():
            if not fits(self._fields[column].shape, cell.type):
                raise _refused(row.name, column, f"`{cell.text}` gives {cell.type}, which does not fit the output")
        return cells

    def _cell(self, row: Row, column: str, text: Any) -> Expression:
        try:
            return self._language.compile(text)
        except InvalidDefinition as error:
            raise _refused(row.name, column, str(error)) from error

    # -- deciding ---------------------------------------------------------------------------

    def decide(self, facts: Any) -> Verdict[Any]:
        """The verdict on these facts. Raises TerminalError: RuleError, RowsOverlap, NoRowHit, FactsTooLarge."""
        seen = seen_facts(self._language, facts, self._named())
        hits = list(self._hits(seen))
        if self.parts.policy == "unique" and len(hits) > 1:
            names = [row.hit.row for row in hits]
            raise TerminalError(
                f"{self._named()}: rows {', '.join(names)} hit at once, and the hit policy is unique",
                type="RowsOverlap",
                details={"rows": names},
            )
        if not hits and self._default is not None:
            hits = [self._default]
        found = [self._result(row, seen) for row in hits]
        if self.parts.policy != "collect" and not found:
            raise TerminalError(f"{self._named()}: no row hit, and there is no default row", type="NoRowHit")
        value = found if self.parts.policy == "collect" else found[0]
        parts = self.parts
        return Verdict(parts.name, parts.version, self.digest, parts.policy, [row.hit for row in hits], value)

    def _hits(self, facts: Any) -> Iterator[_Row]:
        for row in self._rows:
            if all(self._holds(row, column, cell, facts) for column, cell in row.when.items()):
                yield row
                if self.parts.policy == "first":
                    return

    def _holds(self, row: _Row, column: str, cell: Expression, facts: Any) -> bool:
        found = self._value(row, column, cell, facts)
        if not isinstance(found, bool):
            raise self._failed(row, column, f"a condition is true or false, `{cell.text}` gives {found!r}")
        return found

    def _result(self, row: _Row, facts: Any) -> Any:
        plain = {column: self._value(row, column, cell, facts) for column, cell in row.then.items()}
        try:
            return typed(plain[RESULT] if self._single else plain, self.parts.output, "then")
        except InvalidValue as error:
            raise self._failed(row, "then", str(error)) from error

    def _value(self, row: _Row, column: str, cell: Expression, facts: Any) -> Any:
        try:
            return cell.value(facts)
        except ExpressionFailed as error:
            raise self._failed(row, column, f"{error}; in `{cell.text}`") from error

    def _failed(self, row: _Row, column: str, problem: str) -> TerminalError:
        details = {"row": row.hit.row, "column": column}
        message = f"{self._named()}: row {row.hit.row!r}, column {column!r}: {problem}"
        return TerminalError(message, type="RuleError", details=details)

    def _named(self) -> str:
        return f"decision table {self.parts.name!r} version {self.parts.version}"


def digest_of(*content: Any) -> str:
    """Names the content of a rule in twelve characters."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:12]


def typed(plain: Any, type: Any, name: str) -> Any:
    """What an expression gave as the declared type. Raises InvalidValue with the path to what does not fit."""
    return values.decode(values.encode(plain, name), type, name)


def seen_facts(language: Language, facts: Any, named: str) -> Any:
    """The facts as expressions see them. Raises TerminalError."""
    try:
        return language.facts(facts)
    except InvalidValue as error:
        raise TerminalError(f"{named}: {error}", type="FactsTooLarge") from error
    except Exception as error:
        # What CEL has no form for: an integer beyond 64 bits, a lone surrogate.
        raise TerminalError(f"{named}: the facts cannot be read: {error}", type="RuleError") from error


def _check_rows(parts: Parts) -> None:
    if not parts.rows:
        raise InvalidDefinition("it has no rows")
    if len(parts.rows) > MAX_ROWS:
        raise InvalidDefinition(f"it has {len(parts.rows):,} rows, {MAX_ROWS:,} are the limit")
    names: set[str] = set()
    always = None
    for row in parts.rows:
        if not isinstance(row, Row):
            raise InvalidDefinition(f"rows are Row(…), got {row!r}")
        if not isinstance(row.name, str) or not row.name.strip() or row.name in names:
            raise InvalidDefinition(f"row {row.name!r}: each row needs a name of its own")
        if not isinstance(row.when, Mapping) or len(row.when) > MAX_COLUMNS:
            raise InvalidDefinition(f"row {row.name!r}: when is at most {MAX_COLUMNS} conditions by column")
        if row.default and row.when:
            raise InvalidDefinition(f"row {row.name!r} is the default: it has no conditions")
        if parts.policy == "first" and always is not None and not row.default:
            raise InvalidDefinition(f"row {row.name!r} can never hit: row {always!r} before it has no conditions")
        always = row.name if not row.when and not row.default else always
        names.add(row.name)
    if sum(row.default for row in parts.rows) > 1:
        raise InvalidDefinition("it has more than one default row")


def _refused(row: str, column: str, problem: str) -> InvalidDefinition:
    return InvalidDefinition(f"row {row!r}, column {column!r}: {problem}")
