"""The command of chaos: what it refuses, how it ends, and the command that it prints to play all again."""

from __future__ import annotations

from pathlib import Path
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


def test_a_disk_of_its_own_is_there_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "_mounted", lambda *_: False)
    assert not Disk(tmp_path, 0).small
    with pytest.raises(OSError, match="no tmpfs can be mounted"):
        Disk(tmp_path, 1)
    assert not disk.mountable()
