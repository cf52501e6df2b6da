"""The command of chaos: what it refuses, how it ends, and the command that it prints to play all again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import disk, run
from chaos.disk import Disk
from chaos.faults import FAULTS
from chaos.world import Shape


def test_a_world_that_does_not_open_ends_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_: Any) -> Any:
        raise TimeoutError("no topics within 60 s")

    monkeypatch.setattr(run, "opened", opened)
    assert run.main(["--report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "no chaos: TimeoutError: no topics within 60 s" in told
    assert "Traceback" not in told


def test_faults_of_which_none_can_be_had_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "unavailable", lambda: {"clock": "libfaketime is not installed"})
    assert run.main(["--faults", "clock", "--report", str(tmp_path)]) == 2
    assert "clock cannot be had here: libfaketime is not installed" in capsys.readouterr().err


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--faults", "plague"])
    assert ended.value.code == 2
    assert "no fault is called plague" in capsys.readouterr().err


@pytest.mark.parametrize("names", [list(FAULTS), ["freeze", "network"]])
def test_the_command_that_is_printed_plays_the_same_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str]
) -> None:
    asked: list[Any] = []

    def reign(*given: Any) -> Any:
        asked.extend(given[:4])
        raise RuntimeError

    monkeypatch.setattr(run, "reign", reign)
    wanted = (Shape(3, 1, 4, rate=2.5, protocol="classic"), 90.0, names, 7)
    command = run.repeating(*wanted).split()
    assert command[:3] == ["python", "-m", "chaos"]
    run.main([*command[3:], "--report", str(tmp_path)])
    assert asked == list(wanted)


def test_a_world_that_still_ends_runs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has piled up; one in which nothing ends any more is judged as it is."""
    told: list[str] = []
    left = ["3 open runs", "2 open runs", "1 open runs", "1 open runs", "1 open runs"]
    world: Any = SimpleNamespace(
        say=told.append,
        recorder=SimpleNamespace(note=lambda _: None),
        load=SimpleNamespace(finish=lambda _: True),
        observer=SimpleNamespace(closed_runs=0, catch_up=lambda: told.append("caught up")),
    )
    clock = [0.0]

    def look(_: Any) -> str:
        clock[0] += 100.0
        world.observer.closed_runs = min(2, world.observer.closed_runs + 1)
        return left.pop(0)

    monkeypatch.setattr(run, "_left", look)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
    assert run.calm(world) == []
    assert told[1:] == ["not at rest, and no end of a run was heard for 180 s: 1 open runs", "caught up"]
    assert clock[0] == 400.0


def test_a_disk_of_its_own_is_there_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "_mounted", lambda *_: False)
    assert not Disk(tmp_path, 0).small
    with pytest.raises(OSError, match="no tmpfs can be mounted"):
        Disk(tmp_path, 1)
    assert not disk.mountable()
