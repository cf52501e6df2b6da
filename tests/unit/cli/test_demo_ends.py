"""What ``demo`` ends with: the table or the JSON, and exit status 1 as soon as one check fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ductor_stream.cli import demo_story
from ductor_stream.cli.demo_checks import Check, Latency, Progress
from ductor_stream.cli.demo_screen import Outcome

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Makes every demo end at once, as if it had been played, with these faults of its check "no run lost"."""

    @contextmanager
    def servers(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(data_dir=Path("nowhere"))

    def play(faults: list[str]) -> None:
        found = [Check("no run lost", faults), Check("no run advanced twice", [])]
        progress, latency = Progress({"completed": 10}, 71, 6, 2), Latency(0.25, 1.5)
        outcome = Outcome("demo-1", 10, progress, 17, 23, latency, 12.34, found)
        monkeypatch.setattr(demo_story, "servers", servers)
        monkeypatch.setattr(demo_story, "Story", lambda *_: SimpleNamespace(play=lambda: outcome))

    return play


def test_all_checks_hold(call: Call, ended: Callable[[list[str]], None]) -> None:
    ended([])
    code, out, _ = call("demo")
    assert code == 0
    rows = {name.strip(): value.strip() for name, _, value in (line[1:-1].partition("│") for line in out.splitlines())}
    assert (rows["runs completed"], rows["steps"]) == ("10 of 10", "71")
    assert rows["attempts redriven after the kills"] == "17, of 23 records"
    assert (rows["latency of a run, p50"], rows["latency of a run, p99"]) == ("0.25 s", "1.50 s")
    assert rows["time of the whole demo, start of the servers included"] == "12.34 s"
    assert rows["no run lost"] == rows["no run advanced twice"] == "holds"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_check_that_fails_is_exit_status_1(
    call: Call, ended: Callable[[list[str]], None], options: list[str]
) -> None:
    ended(["order-7 is running"])
    code, out, _ = call("demo", *options)
    assert code == 1
    assert "order-7 is running" in out
    if options:
        told = json.loads(out)
        assert told["checks"] == {"no run lost": False, "no run advanced twice": True}
        assert (told["attempts_redriven"], told["records_redriven"]) == (17, 23)
        assert (told["latency_p50_s"], told["latency_p99_s"]) == (0.25, 1.5)
