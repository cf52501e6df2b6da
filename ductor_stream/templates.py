"""Texts with ``{fields}`` of a step's input in them: URLs, headers and keys of connectors. Pure.

Names are checked when the connector is declared; nothing but a field's own value is ever put in.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import msgspec

from ductor_stream.errors import InvalidDefinition, TerminalError
from ductor_stream.shapes import at, leaves_of, shape_of

WHOLE = "input"
"""What an input is called in templates that has no fields of its own."""


class Template:
    """A text to be filled in. Raises InvalidDefinition for a name that is no field of the input."""

    def __init__(self, text: str, input: Any, what: str) -> None:
        """``input`` is the type of the step's input (UNSET: it has none), ``what`` stands first in errors."""
        known = _known(input)
        self.text = text
        self._what = what
        self._parts: list[tuple[str, str | None]] = []
        try:
            found = list(string.Formatter().parse(text))
        except (ValueError, TypeError) as error:
            raise InvalidDefinition(
                f"{what}: {text!r} is no template: {error}; a brace itself is written twice"
            ) from error
        for literal, name, spec, conversion in found:
            if name is not None and (name not in known or spec or conversion):
                fields = ", ".join(f"{{{field}}}" for field in sorted(known)) or "none: the step has no input"
                raise InvalidDefinition(f"{what}: {{{name}}} is no field of the input; there are {fields}")
            self._parts.append((literal, name))

    @property
    def names(self) -> list[str]:
        """The fields that it needs."""
        return [name for _, name in self._parts if name is not None]

    @property
    def head(self) -> str:
        """The constant text before the first field."""
        return self._parts[0][0] if self._parts else ""

    def filled_with(self, text: str) -> str:
        """The text with ``text`` in the place of each field."""
        return "".join(literal + ("" if name is None else text) for literal, name in self._parts)

    def fill(self, input: Any, quoted: Callable[[str], str] = str) -> str:
        """The text with the fields of ``input`` (decoded JSON), each through ``quoted``. Raises TerminalError."""
        return "".join(
            literal + ("" if name is None else quoted(self._text(input, name))) for literal, name in self._parts
        )

    def _text(self, input: Any, name: str) -> str:
        try:
            found = input if name == WHOLE and not isinstance(input, dict) else at(input, name)
        except KeyError:
            found = None
        if isinstance(found, bool):
            return "true" if found else "false"
        if not isinstance(found, (str, int, float)):
            raise TerminalError(
                f"{self._what}: {name} is {found!r}, and has to be a text or a number", type="InvalidInput"
            )
        return str(found)


def _known(input: Any) -> set[str]:
    if input is msgspec.UNSET:
        return set()
    return set(leaves_of(shape_of(input))) or {WHOLE}
