"""A rule that is one CEL expression: no rows, its value is the decision."""

from __future__ import annotations

from typing import Any

from ductor_stream.errors import InvalidDefinition, InvalidValue, TerminalError
from ductor_stream.rules.cel import ExpressionFailed, Language
from ductor_stream.rules.table import digest_of, seen_facts, typed
from ductor_stream.rules.types import fits
from ductor_stream.rules.verdict import Hit, Verdict
from ductor_stream.shapes import shape_of


class Single:
    """An expression that was checked. Raises InvalidDefinition that says where in it what is wrong."""

    def __init__(self, name: str, version: str, text: str, types: tuple[Any, Any]) -> None:
        """``types`` are those of the input and of the output."""
        self.name, self.version = name, version
        self.digest = digest_of("expression", text)
        self._output = types[1]
        self._language = Language(types[0])
        self._expression = self._language.compile(text)
        if not fits(shape_of(self._output), self._expression.type):
            raise InvalidDefinition(f"`{text}` gives {self._expression.type}, which does not fit the output")

    def decide(self, facts: Any) -> Verdict[Any]:
        """The verdict on these facts. Raises TerminalError: RuleError, FactsTooLarge."""
        named, text = f"expression {self.name!r} version {self.version}", self._expression.text
        seen = seen_facts(self._language, facts, named)
        try:
            value = typed(self._expression.value(seen), self._output, "its value")
        except (ExpressionFailed, InvalidValue) as error:
            raise TerminalError(f"{named}: {error}; in `{text}`", type="RuleError") from error
        return Verdict(self.name, self.version, self.digest, "expression", [Hit("", {"expression": text})], value)
