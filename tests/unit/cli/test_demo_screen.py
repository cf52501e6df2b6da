"""What the demo shows while it runs: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ductor_stream.cli import demo_screen
from ductor_stream.cli.demo_checks import Progress
from ductor_stream.cli.demo_screen import Now, Screen


def half_way() -> Now:
    members: list[Any] = [
        SimpleNamespace(name="coordinator-1", state="killed", process=SimpleNamespace(pid=41)),
        SimpleNamespace(name="worker-1", state="running", process=SimpleNamespace(pid=42)),
    ]
    return Now(500, produced=260, progress=Progress({"running": 20, "completed": 230}, 1_234, 17, 0), members=members)


def test_on_a_terminal_there_are_bars_and_what_happens_stays_above_them() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=100, color_system=None))
    screen.begin()
    screen.tell("kill -9 of coordinator-1 (pid 41)")
    screen.draw(half_way())
    screen.end()
    shown = out.getvalue()
    for each in ("kill -9 of coordinator-1", "260 of 500", "250 of 500", "230 of 500", "1234", "17 retried"):
        assert each in shown, each
    assert "✗ coordinator-1 (pid 41)" in shown and "● worker-1 (pid 42)" in shown


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=100))
    screen.begin()
    now = [100.0]
    monkeypatch.setattr(demo_screen.time, "monotonic", lambda: now[0])
    for _ in range(5):
        screen.draw(half_way())
    now[0] += 2.0
    screen.draw(half_way())
    screen.end()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.endswith("ordered 260, completed 230, steps 1234") for line in lines)
