"""Tries each mutant of mutmut in a child of a pytest session that has collected its tests once.

mutmut's own runner cannot be used here. It calls a mutant through a trampoline, and the engine looks at the frames
between it and the user's code: places of errors and refusals of what reaches outside would be others. It keeps who
calls whom in a context variable, which ends Python 3.11 with a segmentation fault when calls come from contexts of our
loop. And it collects all tests again for each mutant. So mutmut makes the mutants, and here one takes the place of its
function in a child process, which then runs the tests that reach that function, the quickest first.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

FOUND = Path("found.json")
LONGEST_S = 1.0
"""Tests that take longer are left out: a mutant that lives would cost them all."""

_NOT_TRIED = 70
"""Exit status of a child in which the mutant did not get as far as a test that failed, or all that passed."""

_known: dict[CodeType, tuple[FunctionType, Mapping[str, FunctionType]]] = {}


def registered(mutants: Mapping[str, FunctionType], is_classmethod: bool = False) -> Callable[[Any], Any]:
    """In the place of mutmut's ``wrap_in_trampoline``: the function stays as it is."""

    def register(function: FunctionType) -> FunctionType:
        _known[function.__code__] = (function, mutants)
        function.__cantrace__ = True  # type: ignore[attr-defined]  # else Python hides an audit hook from `_see`
        return function

    return register


def exchange(function: FunctionType, mutant: FunctionType) -> None:
    """The mutant is what runs from now on. Raises ValueError where it uses ``super()`` no more."""
    old = function.__code__
    function.__code__ = mutant.__code__.replace(co_name=old.co_name, co_qualname=old.co_qualname)
    function.__defaults__, function.__kwdefaults__ = mutant.__defaults__, mutant.__kwdefaults__


class Trials:
    """A pytest plugin: after all tests have passed once, the mutants of each of ``wanted`` (prefixes of names) are tried."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self._reaching: dict[CodeType, list[pytest.Item]] = {}
        self._seconds: dict[pytest.Item, float] = {}
        self._hit: set[CodeType] = set()
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Any phase counts."""
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of pytest's."""
        self._learn(session.items)
        found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
        for name, code, mutant in self._mutants():
            if found.get(name) != "killed":
                found[name] = self._tried(code, mutant)
                FOUND.write_text(json.dumps(found, indent=1))
        return True

    def _learn(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            self._hit.clear()
            began = time.process_time()
            sys.setprofile(self._see)
            self._run(item)
            sys.setprofile(None)
            self._seconds[item] = time.process_time() - began
            if self._failed:
                print(f"{item.nodeid} fails without a mutant", file=sys.__stderr__)
                pytest.exit("", 1)
            if self._seconds[item] <= LONGEST_S:
                for code in self._hit:
                    self._reaching.setdefault(code, []).append(item)
        for reaching in self._reaching.values():
            reaching.sort(key=self._seconds.__getitem__)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in _known:
            self._hit.add(frame.f_code)

    def _run(self, item: pytest.Item) -> None:
        for module in {function.__module__ for function, _ in _known.values()}:
            for value in vars(sys.modules[module]).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()  # else what another test has asked already reaches nobody
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)

    def _mutants(self) -> Iterator[tuple[str, CodeType, FunctionType]]:
        for wanted in self._wanted:
            for code, (function, mutants) in _known.items():
                if f"{function.__module__}.".startswith(wanted):
                    tried = ((f"{function.__module__}.{name}", mutant) for name, mutant in mutants.items())
                    yield from ((name, code, mutant) for name, mutant in tried if not name.endswith("_mutmut_orig"))

    def _tried(self, code: CodeType, mutant: FunctionType) -> str:
        items = self._reaching.get(code, [])
        if not items:
            return "reached by no test"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._child(_known[code][0], mutant, items, writing)
        os.close(writing)
        with open(reading) as told:
            killer = told.read()
        _, status = os.waitpid(child, 0)
        if killer:
            # What has noticed one mutant of a function will notice others.
            items.insert(0, items.pop(int(killer)))
        return {0: "survived", _NOT_TRIED: "could not be tried"}.get(os.waitstatus_to_exitcode(status), "killed")

    def _child(self, function: FunctionType, mutant: FunctionType, items: Sequence[pytest.Item], writing: int) -> None:
        """Ends the process: 0 when every test passed. One that takes far more time than it should is ended."""
        limit = int(3 * sum(map(self._seconds.__getitem__, items)) + 5)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            exchange(function, mutant)
            for place, item in enumerate(items):
                self._run(item)
                if self._failed:
                    os.write(writing, str(place).encode())
                    os._exit(1)
        except Exception:  # noqa: BLE001 - of this plugin or of pytest: tests catch their own
            os._exit(_NOT_TRIED)
        os._exit(0)
