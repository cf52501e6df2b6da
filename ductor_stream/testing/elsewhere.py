"""Replay in processes with other hash seeds: the order of a set of strings shows there, and nowhere else.

It costs time, so it is done for workflows only whose code makes sets or may be handed some, and for apps only that another
process can import: those that are a variable of a module.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import importlib
import inspect
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import msgspec.inspect as inspected

from ductor_stream.app import App
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.forms import has_sets
from ductor_stream.testing.replay import replay_history

SEEDS = ("1", "2", "3", "4")
"""Of two strings each seed has the other order with one in two chances; of five, nearly always."""

_WITHIN_S = 120
_OPCODES = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_NAMES = frozenset({"set", "frozenset", "keys", "union", "intersection", "difference", "symmetric_difference"})


class _Question(msgspec.Struct):
    """What another process is asked: an app by module and name, and exported histories of its runs."""

    path: list[str]
    module: str
    name: str
    histories: list[bytes]


class _Answer(msgspec.Struct):
    """What it says: how histories differ, or why it cannot tell."""

    differences: list[str]
    problem: str = ""


def makes_sets(function: object) -> bool:
    """Whether the function, or one that it names, makes a set in any way that its code tells."""
    seen: set[types.CodeType] = set()
    left = [function]
    while left:
        found = left.pop()
        if not isinstance(found, types.FunctionType) or found.__code__ in seen:
            continue
        seen.add(found.__code__)
        for code in _nested(found.__code__):
            if _tells_of_a_set(code):
                return True
            left += _named(code, found.__globals__)
        left += [cell.cell_contents for cell in found.__closure__ or () if _is_filled(cell)]
        left.append(inspect.unwrap(found))
    return False


def hears_sets(app: App, workflow: WorkflowDefinition) -> bool:
    """Whether sets are in what the workflow may hear: its input, results of steps and of child runs, signals."""
    heard = [workflow.input_type, *(signal.definition.payload_type for signal in app.signals.values())]
    heard += [step.definition.output_type for step in app.steps.values()]
    heard += [child.definition.output_type for child in app.workflows.values()]
    return any(_holds_sets(type) for type in heard)


def _holds_sets(type: Any) -> bool:
    seen: set[int] = set()
    left: list[object] = [inspected.type_info(type)]
    while left:
        found = left.pop()
        if isinstance(found, inspected.SetType | inspected.FrozenSetType):
            return True
        if isinstance(found, inspected.CustomType) and hasattr(found.cls, "model_json_schema") and has_sets(found.cls):
            return True
        if isinstance(found, tuple):
            left += found
        elif isinstance(found, inspected.Type | inspected.Field) and id(found) not in seen:
            seen.add(id(found))
            left += [getattr(found, name) for name in found.__struct_fields__]
    return False


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _tells_of_a_set(code: types.CodeType) -> bool:
    if _NAMES & set(code.co_names) or any(isinstance(constant, frozenset) for constant in code.co_consts):
        return True
    return any(instruction.opname in _OPCODES for instruction in dis.get_instructions(code))


def _named(code: types.CodeType, known: dict[str, object]) -> list[object]:
    """Functions, methods of classes, and functions of modules that the code names."""
    values = [known[name] for name in code.co_names if name in known]
    for value in list(values):
        if isinstance(value, types.ModuleType):
            values += [getattr(value, name) for name in code.co_names if hasattr(value, name)]
        elif isinstance(value, type):
            values += list(vars(value).values())
    return values


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def differences(app: App, histories: Sequence[bytes]) -> list[str]:
    """How today's code decides otherwise, in processes that order sets in another way; one line per difference.

    Nothing where the app is not a variable of a module that can be imported.
    """
    place = _place_of(app)
    if place is None or not histories:
        return []
    question = msgspec.json.encode(_Question([path or os.getcwd() for path in sys.path], *place, list(histories)))
    others = _others()
    for other in others:
        other.ask(question)
    answers = [other.answer() for other in others]
    for problem in {answer.problem for answer in answers if answer.problem}:
        message = f"the order of sets was not tried, another process cannot have {':'.join(place)}: {problem}"
        warnings.warn(message, stacklevel=2)
    return sorted({line for answer in answers for line in answer.differences})


def _place_of(app: App) -> tuple[str, str] | None:
    for module in list(sys.modules.values()):
        if getattr(module, "__spec__", None) is None or module.__name__ == "__main__":
            continue
        for name, value in list(vars(module).items()):
            if value is app:
                return module.__name__, name
    return None


class _Other:
    """A process with that hash seed. It ends when this one does, since nobody asks any more."""

    def __init__(self, seed: str) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", f"from {__name__} import main; main()"]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)

    def ask(self, question: bytes) -> None:
        """Hand over a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(question + b"\n")
            self._process.stdin.flush()

    def answer(self) -> _Answer:
        """The line that it says to it."""
        assert self._process.stdout is not None
        patience = threading.Timer(_WITHIN_S, self._process.kill)
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        if not line:
            _running.clear()
            return _Answer([], "it ended without an answer")
        return msgspec.json.decode(line, type=_Answer)

    def end(self) -> None:
        """Let it go."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


_running: list[_Other] = []
"""Kept from one test to the next: to begin one takes as long as a hundred answers."""


def _others() -> list[_Other]:
    if not _running:
        _running.extend(_Other(seed) for seed in SEEDS)
        for other in _running:
            atexit.register(other.end)
    return list(_running)


def main() -> None:
    """Answer the questions on stdin, a line each."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the app's module prints is no answer
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(_answered(line)) + b"\n")
        answers.flush()


def _answered(line: bytes) -> _Answer:
    asked = msgspec.json.decode(line, type=_Question)
    sys.path[:] = asked.path
    try:
        app = getattr(importlib.import_module(asked.module), asked.name)
        parked = [replay_history(app, history) for history in asked.histories]
    except (SystemExit, Exception) as error:  # noqa: BLE001 - whatever a module does that is imported
        return _Answer([], f"{type(error).__name__}: {error}")
    return _Answer([each.message for each in parked if each is not None])
