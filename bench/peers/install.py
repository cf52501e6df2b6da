"""Puts the peers into one folder of their own: a virtual environment, Restate's server, Temporal's, LittleHorse's.

Needs pip; npm for Restate; Go 1.26 for Temporal; Maven for LittleHorse. What is there already is left alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
_RESTATE = "@restatedev/restate-server@1.7"
_TEMPORAL = ("go.temporal.io/server/cmd/server", "go.temporal.io/server/cmd/tools/sql")


class NotInstalled(RuntimeError):
    """A peer cannot be installed here; the message says what is missing."""


def python_of(folder: Path) -> Path:
    """The peers' own Python."""
    return folder / "venv" / "bin" / "python"


def install(folder: Path, products: Iterable[str]) -> None:
    """Make everything that these products need. Raises NotInstalled, CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not python_of(folder).exists():
        _call([sys.executable, "-m", "venv", folder / "venv"])
    for name in ("common", *products):
        _requirements(folder, name)
    for name in products:
        if name in _SERVERS:
            _SERVERS[name](folder)


def _requirements(folder: Path, name: str) -> None:
    wanted = HERE / "requirements" / f"{name}.txt"
    stamp = folder / f"installed-{name}.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        _call([python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted])
        stamp.write_text(wanted.read_text())


def _restate(folder: Path) -> None:
    target = folder / "npm"
    if not (target / "node_modules" / "@restatedev").is_dir():
        target.mkdir(exist_ok=True)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        _call([_program("npm"), "install", "--prefix", target, *quiet, _RESTATE])


def _temporal(folder: Path) -> None:
    """Builds the server, which takes some minutes."""
    target = folder / "temporal"
    if (target / "server").exists():
        return
    go, source = _program("go"), target / "src"
    source.mkdir(parents=True, exist_ok=True)
    for name in ("go.mod", "tools.go"):
        shutil.copy(HERE / "temporal" / name, source)
    _call([go, "mod", "tidy"], source)
    _call([go, "build", "-ldflags=-s -w", "-o", target, *_TEMPORAL], source)


def _littlehorse(folder: Path) -> None:
    target = folder / "littlehorse" / "libs"
    if not target.is_dir():
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        _call([_program("mvn"), "-q", "-B", "-f", HERE / "littlehorse" / "pom.xml", *goal])


_SERVERS: dict[str, Callable[[Path], None]] = {"restate": _restate, "temporal": _temporal, "littlehorse": _littlehorse}


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(f"{name} is needed, and is not installed")
    return found


def _call(command: list[str | Path], folder: Path | None = None) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=folder)
