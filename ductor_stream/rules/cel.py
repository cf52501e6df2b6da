"""CEL, as rules use it: checked against the types of the facts, evaluated within bounds. The one place that knows
the library."""

from __future__ import annotations

import importlib
import re
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ductor_stream.engine import forms, values
from ductor_stream.errors import InvalidDefinition, InvalidValue
from ductor_stream.rules.types import cel_type, check_name, facts_name
from ductor_stream.shapes import at, leaves_of, shape_of

MAX_EXPRESSION = 2_000
"""Characters of one expression. The library itself gives up at 32 levels of nesting."""

MAX_FACTS_BYTES = 32_768
MAX_ITEMS = 1_000
"""Facts as JSON, and the members of one list or object in them. With these and the library's budget of 10,000
iterations, an expression takes at most a third of a second, whatever the facts; one that is made to be slow (the longest
string eight times over, for each of 1,000 members) 1.5 s and a gigabyte. Without them: minutes, and all memory."""

_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): ([^\n]*)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")


class ExpressionFailed(Exception):
    """An expression has no value for these facts."""


def library() -> Any:
    """The CEL library. Raises InvalidDefinition where it is not installed."""
    try:
        return importlib.import_module("cel_expr_python.cel")
    except ImportError as error:
        raise InvalidDefinition(
            f"rules need the extra `rules`: pip install 'ductor-stream[rules]' ({error})"
        ) from error


class Expression:
    """A compiled expression. ``type`` is the name of the CEL type of its value (``DYN``: known when evaluated)."""

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self.type: str = compiled.return_type().name()
        self._compiled = compiled

    def value(self, facts: Any) -> Any:
        """Its value for what ``Language.facts`` gave. Raises ExpressionFailed."""
        try:
            found = self._compiled.eval(facts)
        except RuntimeError as error:
            raise ExpressionFailed(_said(str(error))) from error
        if found.type().name() in ("ERROR", "UNKNOWN"):
            raise ExpressionFailed(_said(str(found.plain_value())))
        return found.plain_value()


class Language:
    """What the expressions of one rule may say: CEL's standard library over the fields of the input, nothing else."""

    def __init__(self, input: Any) -> None:
        """Raises InvalidDefinition where the library is missing."""
        self._cel = library()
        shape = shape_of(input)
        leaves = {path: leaf for path, leaf in leaves_of(shape).items() if check_name(path)}
        self._paths = {facts_name(path): path for path in leaves}
        types = {facts_name(path): cel_type(self._cel.Type, leaf) for path, leaf in leaves.items()}
        self._whole = not types
        if self._whole:
            types["facts"] = cel_type(self._cel.Type, shape)
        self.names = sorted(types)
        self._env = self._cel.NewEnv(variables=types)

    def compile(self, text: Any) -> Expression:
        """Check and compile. Raises InvalidDefinition that says where in the expression what is wrong."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidDefinition(f"an expression is CEL in a string, like 'total > 100.0', not {text!r}")
        if len(text) > MAX_EXPRESSION:
            raise InvalidDefinition(f"the expression has {len(text):,} characters, {MAX_EXPRESSION:,} are the limit")
        try:
            return Expression(text, self._env.compile(text))
        except RuntimeError as error:
            raise InvalidDefinition(f"{_said(str(error))}; in `{text}`{self._hint(str(error))}") from error

    def facts(self, given: Any) -> Any:
        """The facts as expressions see them. Raises InvalidValue for facts beyond the bounds."""
        size = len(values.encode(given, "facts"))
        if size > MAX_FACTS_BYTES:
            raise InvalidValue(f"the facts have {size:,} bytes as JSON, {MAX_FACTS_BYTES:,} are the limit")
        plain = msgspec.to_builtins(
            given,
            builtin_types=(datetime, timedelta, bytes),
            str_keys=True,
            enc_hook=forms.enc_hook,
            order="deterministic",
        )
        _check_items(plain, "facts")
        data = {"facts": plain} if self._whole else self._placed(plain)
        return self._env.Activation(data)

    def _placed(self, plain: Any) -> dict[str, Any]:
        placed = {}
        for name, path in self._paths.items():
            try:
                placed[name] = at(plain, path)
            except KeyError:  # a key that a TypedDict may leave out: an expression that needs it has no value
                continue
        return placed

    def _hint(self, said: str) -> str:
        if "undeclared reference" in said:
            return f" (facts: {', '.join(self.names)})"
        mixed = "(double, int)" in said or "(int, double)" in said
        return " (CEL does not mix them: write 100.0 beside a float, or double(count))" if mixed else ""


def _check_items(plain: Any, path: str) -> None:
    if not isinstance(plain, (list, tuple, dict)):
        return
    if len(plain) > MAX_ITEMS:
        raise InvalidValue(f"{path} has {len(plain):,} members, {MAX_ITEMS:,} are the limit")
    members = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in members:
        _check_items(value, f"{path}.{key}" if isinstance(plain, dict) else f"{path}[{key}]")


def _said(text: str) -> str:
    """The library's message on one line, without its own words around it."""
    found = _ERROR.search(text)
    if found is None:
        return _STATUS.sub("", " ".join(text.split()))
    line, column, message = found.groups()
    place = f"line {line}, character {column}: " if int(column) > 0 else ""
    return place + re.sub(r" \(in container ''\)| expecting \{.*", "", message)
