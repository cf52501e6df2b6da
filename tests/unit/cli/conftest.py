"""Running a command in an empty folder, inside this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ductor_stream.cli.main import main


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run a command in an empty folder and environment: exit code, standard output, standard error.

    Each call imports the folder's modules anew.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("DUCTOR_")]:
        monkeypatch.delenv(name)

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]

    def run(*arguments: str) -> tuple[int, str, str]:
        forget()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
            raise SystemExit(0)
        out, err = capfd.readouterr()
        return int(str(ended.value.code or 0)), out, err

    yield run
    forget()
