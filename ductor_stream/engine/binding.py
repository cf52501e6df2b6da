"""The parameters of a step: from a call's arguments to the JSON array of its task, and back in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from types import GenericAlias
from typing import Any

import msgspec

from ductor_stream.engine import values
from ductor_stream.errors import InvalidValue

REQUIRED: Any = msgspec.UNSET
"""As a default: a call has to give it."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter that crosses the wire. ``default`` may be ``REQUIRED``."""

    name: str
    type: Any = Any
    default: Any = REQUIRED
    keyword_only: bool = False
    positional_only: bool = False

    @property
    def required(self) -> bool:
        """Whether a call has to give it."""
        return self.default is REQUIRED


class Parameters:
    """The parameters of a step in the order in which they stand in the array.

    Positional parameters come first, then keyword-only ones; resources do not cross the wire and are not here.
    """

    def __init__(self, step: str, parameters: Sequence[Parameter]) -> None:
        self.step = step
        self.all = tuple(parameters)
        self._positional = sum(not p.keyword_only for p in self.all)
        self._places = {p.name: place for place, p in enumerate(self.all) if not p.positional_only}
        types = tuple(p.type for p in self.all)
        # By length: an older caller's array is shorter.
        self._arrays: list[Any] = [GenericAlias(tuple, types[:count]) for count in range(len(types) + 1)]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The JSON array for a call: keyword arguments at their positions, defaults filled in.

        Raises TypeError as a wrong call would, and InvalidValue with the path to a field that does not fit.
        """
        given = args if not kwargs and len(args) == len(self.all) == self._positional else self._placed(args, kwargs)
        try:
            raw = values.encode(given)
            values.decode(raw, self._arrays[-1])
        except InvalidValue:
            for parameter, value in zip(self.all, given, strict=True):
                # Once more, one by one, so that the path begins with the parameter's name.
                values.check(value, parameter.type, parameter.name)
            raise
        return raw

    def decode(self, raw: bytes) -> list[Any]:
        """The arguments of a task, typed, in the order of the array; defaults stand in for what an older caller left out.

        Raises InvalidValue with the path to a field that does not fit.
        """
        try:
            return list(values.decode(raw, self._arrays[-1]))
        except InvalidValue:
            return self._decode_parts(raw)

    def _decode_parts(self, raw: bytes) -> list[Any]:
        """What is not an array of all arguments: an older caller's shorter one, or a fault that is to be named."""
        parts = values.decode(raw, list[msgspec.Raw], "input")
        if len(parts) > len(self.all):
            raise InvalidValue(f"input: {self.step} takes {len(self.all)} arguments, got {len(parts)}")
        missing = self.all[len(parts) :]
        for parameter in missing:
            if parameter.required:
                raise InvalidValue(f"input: {self.step} needs the argument {parameter.name!r}")
        try:
            found = list(values.decode(raw, self._arrays[len(parts)]))
        except InvalidValue:
            for parameter, part in zip(self.all, parts, strict=False):
                values.decode(bytes(part), parameter.type, parameter.name)
            raise
        return found + [parameter.default for parameter in missing]

    def call(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments in the order of the array, as a call needs them: positional ones, and keyword-only ones by name."""
        named = {p.name: v for p, v in zip(self.all, arguments, strict=True) if p.keyword_only}
        return list(arguments[: self._positional]), named

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if len(args) > self._positional:
            raise TypeError(f"{self.step}() takes {self._positional} positional arguments, got {len(args)}")
        placed = [*args, *(parameter.default for parameter in self.all[len(args) :])]
        for name, value in kwargs.items():
            place = self._places.get(name)
            if place is None:
                raise TypeError(f"{self.step}() got an unexpected keyword argument {name!r}")
            if place < len(args):
                raise TypeError(f"{self.step}() got multiple values for argument {name!r}")
            placed[place] = value
        missing = [p.name for p, value in zip(self.all, placed, strict=True) if value is REQUIRED]
        if missing:
            raise TypeError(f"{self.step}() is missing the argument {', '.join(map(repr, missing))}")
        return placed
