"""Suspensions and failures stand in the owner's log, once per commit, without anything that a run was given."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.coordinator.telling import tell
from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.events import Failure
from ductor_stream.telemetry.metrics import Metrics
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, workflow

BOOM = Failure("user", "Boom", "no card\nstack, line 2", details=b'{"card": 4711}')


def test_suspensions_and_failures_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    prepared = Prepared()
    prepared.lifecycles = [
        ("r1", "order", EmitLifecycle("run.started", 1, 1, 0)),
        ("r1", "order", EmitLifecycle("run.suspended", 1, 2, 0, reason="bug: KeyError: 'sku'\nmore")),
        ("r2", "order", EmitLifecycle("run.failed", 1, 2, 0, failure=BOOM)),
        ("r3", "order", EmitLifecycle("run.completed", 1, 2, 0, result=b'"secret"')),
    ]
    prepared.lines = {"r1": [("info", "hello", {"n": 1})]}
    with caplog.at_level(logging.INFO, "ductor_stream"):
        tell(prepared, Metrics())
    said = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]
    assert "hello" in said[0]
    assert "run suspended" in said[1] and "r1" in said[1] and "order" in said[1] and "bug: KeyError: 'sku'" in said[1]
    assert "run failed" in said[2] and "r2" in said[2] and "Boom: no card" in said[2]
    assert not any(word in line for line in said for word in ("4711", "secret", "line 2", "more"))


def test_inputs_of_steps_that_do_not_fit_stay_in_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """SECURITY.md: what differs from history is told with inputs, results and failures of steps."""

    async def before(run: Any) -> Any:
        return await run.step(STEPS["a"], {"card": "4711"})

    async def after(run: Any) -> Any:
        return await run.step(STEPS["a"], {"card": "4712"})

    driver = Driver(workflow(before))
    driver.start()
    driver.lose()
    driver.definitions = Driver(workflow(after)).definitions
    driver.finish("1", 5)
    prepared = Prepared()
    prepared.lifecycles = [("r", "wf", each) for each in driver.actions if isinstance(each, EmitLifecycle)]
    [suspended] = [each for _, _, each in prepared.lifecycles if each.type == "run.suspended"]
    assert "4711" in suspended.reason and "4712" in suspended.reason
    with caplog.at_level(logging.INFO, "ductor_stream"):
        tell(prepared, Metrics())
    [line] = [record.getMessage() for record in caplog.records]
    assert "run suspended" in line and "nondeterminism" in line
    assert "471" not in line


class Unspeakable:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_fields_of_any_name_and_value_leave_the_commit_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What `run.log` was given must not keep from being dispatched what has landed, of this run and its neighbours."""
    prepared = Prepared()
    prepared.lines = {
        "r1": [("info", "told", {"run_id": "child-7", "event": "paid"}), ("info", "mute", {"it": Unspeakable()})],
        "r2": [("info", "next", {})],
    }
    with caplog.at_level(logging.INFO, "ductor_stream"):
        tell(prepared, Metrics())
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "told run_id=r1 run_id_=child-7 event_=paid"
    assert "cannot be written" in said[1] and "r1" in said[1]
    assert said[2] == "next run_id=r2"
