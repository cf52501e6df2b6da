"""Takes CPython's own test classes over, so that they run on our loop.

The standard library's ``test.test_asyncio`` comes with the interpreter that runs the tests. Each class is subclassed,
and while its tests run, whatever makes an event loop makes ours. A real event loop that runs is an error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import unittest
from asyncio import base_events, events
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from cpython.driver import DriverLoop, GeneratorLoop
from test.test_asyncio import utils as test_utils

Suite = type[unittest.TestCase]


def suites(name: str) -> dict[str, Suite]:
    """The test classes that ``test.test_asyncio.<name>`` defines, by "<name>.<class>"."""
    module = importlib.import_module(f"test.test_asyncio.{name}")
    return {
        f"{name}.{key}": value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == module.__name__
    }


def names(suite: Suite) -> list[str]:
    """The names of the test methods of ``suite``."""
    return list(unittest.TestLoader().getTestCaseNames(suite))


def on_our_loop(suite: Suite, excluded: Mapping[str, str], module: str) -> Suite:
    """A copy of ``suite`` whose tests run on our loop, without those in ``excluded``, to be collected in ``module``."""
    body: dict[str, Any] = dict.fromkeys(excluded)  # None is not callable, so no test
    body["run"] = _run
    body["__module__"] = module
    return type(suite.__name__, (suite,), body)


def _run(self: unittest.TestCase, result: Any = None) -> Any:
    with our_loops():
        return super(type(self), self).run(result)


@contextmanager
def our_loops() -> Iterator[None]:
    """Inside, every new event loop is a DriverLoop, and a real one that is run raises."""
    replaced: list[tuple[Any, str, Any]] = [
        (asyncio, "new_event_loop", DriverLoop),
        (events, "new_event_loop", DriverLoop),
        (test_utils, "TestLoop", GeneratorLoop),
        (base_events.BaseEventLoop, "run_forever", _refuse),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        # Some tests collect garbage a hundred times: let them do it among their own objects only.
        gc.freeze()
        stack.callback(gc.unfreeze)
        yield


def _refuse(loop: object) -> None:
    raise AssertionError(f"a test of ours ran on {loop!r}")
