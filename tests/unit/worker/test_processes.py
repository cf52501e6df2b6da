"""Steps with ``executor="process"``: whatever happens to the process is a failed attempt, and never a dead worker."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import until
from unit.process_steps import app
from worker_rigs import Bench, Reported, bench

from ductor_stream import App
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import InvalidDefinition


@pytest.fixture
def b() -> Iterator[Bench]:
    with bench(app) as made:
        yield made
        until(lambda: made.slots.free == made.slots.total, what="slots that are free again")


def _result(delivery: Reported) -> dict[str, Any]:
    until(lambda: delivery.result, within_ms=30_000, what="the report of an attempt")
    assert delivery.result is not None
    return delivery.result


def _gone(pid: int) -> bool:
    """Whether no such process runs (one that nobody has waited for yet does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    assert state == "Z", state
    return True


def test_it_runs_in_another_process_which_is_kept_for_the_next(b: Bench) -> None:
    first = _result(b.run("where", "one", run_id="r-1"))["output"]
    second = _result(b.run("where", "two", run_id="r-2"))["output"]
    assert first[0] == second[0] != os.getpid()
    assert (first[1:], second[1]) == (["one", "r-1", "t/r-1/1/1"], "two")
    assert _result(b.run("other-name"))["output"] == "found"


def test_what_it_raises_is_told_as_from_anywhere(b: Bench) -> None:
    error = _result(b.run("declined"))["error"]
    assert (error["code"], error["type"], error["message"]) == ("user", "CardDeclined", "no")
    assert (error["retryable"], error["details"]) == (False, {"code": 51})
    assert "process_steps.py" in error["stack"] and "ductor_stream/worker" not in error["stack"]
    assert _result(b.run("leaves", node_id="2"))["error"]["type"] == "SystemExit"
    assert _result(b.run("odd", node_id="3"))["error"]["code"] == "output_not_encodable"
    assert _result(b.run("where", 7, node_id="4"))["outcome"] == "rejected"


@pytest.mark.parametrize(
    ("step", "arguments", "told"),
    [
        ("crashes", [], "it was ended by SIGSEGV"),
        ("ends", [7], "it ended with exit status 7"),
        ("ends", [0], "status 0"),
        *([("signals", [40], "it was ended by signal 40")] if sys.platform == "linux" else []),
    ],
)
def test_a_process_that_dies_is_a_failed_attempt(b: Bench, step: str, arguments: list[Any], told: str) -> None:
    error = _result(b.run(step, *arguments))["error"]
    assert (error["code"], error["type"]) == ("user", "ProcessDied")
    assert f"the process of step {step} died" in error["message"] and told in error["message"]
    assert error.get("retryable", True)
    assert _result(b.run("where", "after", node_id="2"))["output"][1] == "after"


def test_a_timeout_kills_it_and_all_that_it_has_started(b: Bench, tmp_path: Path) -> None:
    told = tmp_path / "told"
    found = _result(b.run("forever", str(told), start_to_close_ms=3_000))
    assert (found["outcome"], found["error"]["code"]) == ("failed", "timeout_start_to_close")
    pids = [int(word) for word in told.read_text("utf-8").split()]
    assert len(pids) == 2
    for pid in pids:
        until(lambda pid=pid: _gone(pid), what="the end of a process")  # type: ignore[misc]
    assert b.slots.lost == 0


def test_a_stop_kills_it(b: Bench, tmp_path: Path) -> None:
    told = tmp_path / "told"
    delivery = b.run("forever", str(told), run_id="r-1")
    until(lambda: told.exists() and len(told.read_text("utf-8").split()) == 2, within_ms=30_000, what="its start")
    b.executor.stop(Fence("r-1", 1, "1", 1), "run cancelled")
    found = _result(delivery)
    assert found["outcome"] == "cancelled"
    until(lambda: _gone(int(told.read_text("utf-8").split()[0])), what="the end of the process")


def test_heartbeats_come_through_and_what_is_wrong_with_them_goes_back(b: Bench) -> None:
    delivery = b.run("beats")
    assert _result(delivery)["output"] > 0
    assert [beat["details"] for beat in delivery.beats] == [{"page": 17}]


def test_an_idle_process_that_was_killed_is_replaced(b: Bench) -> None:
    pid = _result(b.run("where", "one"))["output"][0]
    os.kill(pid, signal.SIGKILL)
    until(lambda: _gone(pid), what="its end")
    assert _result(b.run("where", "two", node_id="2"))["output"][0] not in (pid, os.getpid())


def test_a_worker_that_ends_leaves_no_process(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with bench(app) as b:
        idle = _result(b.run("where", "one"))["output"][0]
        b.run("forever", str(told), node_id="2")
        until(lambda: told.exists() and len(told.read_text("utf-8").split()) == 2, within_ms=30_000, what="its start")
    for pid in (idle, *map(int, told.read_text("utf-8").split())):
        until(lambda pid=pid: _gone(pid), what="the end of a process")  # type: ignore[misc]


def test_a_step_that_another_process_cannot_find_is_refused_at_once() -> None:
    local = App("t")

    @local.step(executor="process")
    def inside() -> None: ...

    with (
        pytest.raises(InvalidDefinition, match="step inside: executor='process' finds a step in its module"),
        bench(local),
    ):
        pass
    inside.function.__module__ = "gone"
    with pytest.raises(InvalidDefinition, match="gone has it under no name"), bench(local):
        pass
