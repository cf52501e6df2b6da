"""Errors of a run as people read them: type, message, and the file and line of the user's code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', flags=re.MULTILINE)
_NOT_THE_USERS = ("site-packages", "/lib/python", "ductor_stream/worker", "<")


class Place(msgspec.Struct, frozen=True):
    """Where an attempt raised: ``where`` is ``shop.py:6 in charge``, ``type`` the error's."""

    type: str
    where: str


def last_places(attempts: Sequence[Mapping[str, Any]], execution: int) -> dict[str, Place]:
    """By node id, where the last failed attempt of this execution raised; attempts as ``runs show --json`` has them."""
    found: dict[str, Place] = {}
    for attempt in attempts:
        error = attempt["error"]
        if attempt["execution"] == execution and isinstance(error, dict) and (where := _where(error.get("stack"))):
            found[attempt["node_id"]] = Place(str(error.get("type")), where)
    return found


def error_fields(error: Mapping[str, Any] | None, places: Iterable[Place]) -> dict[str, Any]:
    """The fields ``error``, ``error code`` and ``error details`` of a run that failed; nothing for one that did not.

    That it was the user's code needs no code: its type says more.
    """
    if error is None:
        return {}
    kind, message = error.get("type"), error.get("message")
    where = next((place.where for place in reversed(list(places)) if place.type == kind), "")
    told = f"{kind}: {message}" if message else str(kind)
    code = error.get("code")
    return {
        "error": f"{told} (at {where})" if where else told,
        "error_code": f"{code} (`ductor-stream explain {code}`)" if code and code != "user" else None,
        "error_details": error.get("details"),
    }


def node_row(node: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, Any]:
    """A node as the table shows it: where its last attempt raised, and no attempts for what is not attempted."""
    error, place = node["error"], places.get(node["node_id"])
    attempts = node["attempts"] if node["kind"] == "step" else None
    return {**node, "attempts": attempts, "error": f"{error} (at {place.where})" if error and place else error}


def _where(stack: str | None) -> str:
    """The innermost frame of the user's own code; the innermost of all where there is none."""
    frames = list(_FRAME.finditer(stack or ""))
    own = [frame for frame in frames if not any(mark in frame["file"] for mark in _NOT_THE_USERS)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    path = Path(frame["file"])
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame['line']} in {frame['name']}"
