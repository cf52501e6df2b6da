"""Somebody who has never met us: a clone in a folder with a space, an empty home, an own workflow, and gone again.

The clone is of what is committed. It shares pip's cache with whoever runs the tests, to save some minutes; all else that
a first time fetches is fetched.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.commands import alive, descendants
from pages import ROOT, blocks
from support import until

from ductor_stream.cli.demo import DEFAULT_ORDERS
from ductor_stream.cli.demo_story import ORDERS_PER_S

KEPT = ("PATH", "LANG", "LC_ALL")
NETWORK = re.compile(r"(?i).*(proxy|_ca_bundle|_cert(_file|_dir)?|^pip_.*|^ductor_maven_repository|^ductor_dev_ports)$")
"""What says how the outside is reached from this machine is the machine's, not the user's."""

INSTALL_WITHIN_S = 540
END_WITHIN_S = 60

PARCELS = """
from pathlib import Path
from ductor_stream import App, Retry, Run

app = App("parcels")

@app.step
def weigh(parcel: str) -> int:
    return len(parcel)

@app.step(retry=Retry(max_attempts=1))
def price(grams: int) -> int:
    return grams * PER_GRAM

@app.step
def label(cents: int) -> str:
    return f"{cents} cents"

@app.workflow
async def send(run: Run, parcel: str) -> str:
    return await run.step(label, await run.step(price, await run.step(weigh, parcel)))
"""


class Newcomer:
    """A home, a folder for temporary files, one for projects; and an environment in which nothing else is known."""

    def __init__(self, folder: Path) -> None:
        self.home, self.temporary, self.projects = folder / "home", folder / "tmp", folder / "my projects"
        for made in (self.home, self.temporary, self.projects):
            made.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if name in KEPT or NETWORK.match(name)}
        self.environment |= {"HOME": str(self.home), "TMPDIR": str(self.temporary)} | _of_this_machine()
        self.asked_for = folder / "asked for"
        self.environment["PATH"] = f"{self._without()}{os.pathsep}{self.environment['PATH']}"

    def _without(self) -> Path:
        """A folder with programs that are not to be needed: who calls one is noted."""
        folder = self.asked_for.with_name("without")
        folder.mkdir()
        for name in ("java", "mvn", "docker"):
            program = folder / name
            program.write_text(f'#!/bin/sh\necho "$0 $@" >> {shlex.quote(str(self.asked_for))}\nexit 99\n')
            program.chmod(0o755)
        return folder

    def types(self, *command: str, folder: Path, code: int = 0, within_s: int = 120) -> str:
        """What a command says; it must end so."""
        process = subprocess.Popen(
            command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=within_s)
        except BaseException:
            # Not only itself: what `make` has started would go on.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        assert process.returncode == code, f"{command} ended with {process.returncode}: {said}"
        return said

    @contextmanager
    def running(self, *command: str, folder: Path) -> Iterator[None]:
        """A command that goes on for as long as the block lasts; what it says goes to ``said.txt`` in the home."""
        with self.said.open("wb") as out:
            self.started = subprocess.Popen(
                command, cwd=folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            processes = [self.started.pid, *descendants(self.started.pid)]
            self.started.send_signal(signal.SIGINT)
            try:
                self.started.wait(END_WITHIN_S)
            finally:
                self.started.kill()
        assert alive(processes) == []

    def hears(self, line: str) -> None:
        """Wait until the command that goes on says that."""

        def heard() -> bool:
            told = self.said.read_text("utf-8")
            if self.started.poll() is not None:
                raise RuntimeError(f"it has ended: {told}")
            return line in told.splitlines()

        until(heard, within_ms=120_000, what=line)

    @property
    def said(self) -> Path:
        return self.home.parent / "said.txt"

    def files(self) -> list[str]:
        """All that there is in home, temporary folder and projects, but for what is not ours.

        An empty ``~/.cache`` is everybody's; pip asks a Rust compiler for its version, whose launcher leaves a folder.
        """
        folder = self.home.parent
        found = [path for path in folder.rglob("*") if path != self.said and ".rustup" not in path.parts]
        return sorted(str(path.relative_to(folder)) for path in found if path != self.home / ".cache")


def _of_this_machine() -> dict[str, str]:
    """pip's cache where it has one, and what this user has told pip and git: how packages and our clone are reached."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(command, capture_output=True, text=True, check=False)  # it fails where pip keeps none
    found = {"PIP_CACHE_DIR": cache.stdout.strip()} if cache.returncode == 0 else {}
    config = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    files = {
        "PIP_CONFIG_FILE": (config / "pip/pip.conf", Path.home() / ".pip/pip.conf"),
        "GIT_CONFIG_GLOBAL": (Path.home() / ".gitconfig", config / "git/config"),
    }
    for name, paths in files.items():
        there = [str(path) for path in paths if path.is_file()]
        if given := os.environ.get(name) or next(iter(there), ""):
            found[name] = given
    return found


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


@pytest.mark.timeout(1800)  # it installs everything
def test_the_first_hour(newcomer: Newcomer) -> None:
    before = newcomer.files()
    newcomer.types("git", "clone", "--quiet", str(ROOT), "ductor stream", folder=newcomer.projects)
    clone, parcels = newcomer.projects / "ductor stream", newcomer.projects / "parcels"
    # -- README's command in a clone
    told = newcomer.types("make", f"PYTHON={sys.executable}", "demo", folder=clone, within_s=INSTALL_WITHIN_S)
    assert "no run lost" in told and "no run advanced twice" in told  # and it has ended with 0: both hold
    whole = re.search(r"time of the whole demo, start of the servers included\W+([0-9.]+) s", told)
    ready = re.search(r"([0-9.]+) s  Kafka and Postgres are ready", told)
    assert whole and ready, told
    assert float(ready[1]) + DEFAULT_ORDERS / ORDERS_PER_S < float(whole[1]) < INSTALL_WITHIN_S
    # -- README's app, by README's lines
    command = str(clone / ".venv/bin/ductor-stream")
    newcomer.environment["PATH"] = f"{clone}/.venv/bin{os.pathsep}{newcomer.environment['PATH']}"
    parcels.mkdir()
    (install, dev), shop, asked = _of_the_readme()
    assert install.startswith("pip install 'ductor-stream[dev]' ")  # `make` has done it, and tests/packages.py does
    (parcels / "shop.py").write_text(shop, "utf-8")
    with newcomer.running(*shlex.split(dev), folder=parcels):
        newcomer.hears("shop:app is running")
        assert "order-42" in newcomer.types("sh", "-euc", asked, folder=parcels)
        newcomer.types(command, "runs", "watch", "order-42", folder=parcels)
        assert "receipt for order-42" in newcomer.types("sh", "-euc", asked.splitlines()[1], folder=parcels)
    # -- an own workflow
    (parcels / "parcels.py").write_text(PARCELS, "utf-8")
    with newcomer.running(command, "dev", "parcels:app", "--reload", folder=parcels):
        _an_own_workflow(newcomer, command, parcels)
    # -- gone again
    newcomer.types(command, "dev", "reset", "--yes", "--cache", folder=parcels)
    newcomer.types(str(clone / ".venv/bin/python"), "-m", "pip", "uninstall", "--yes", "ductor-stream", folder=clone)
    newcomer.types("make", "clean", folder=clone)
    assert newcomer.types("git", "status", "--porcelain", "--ignored", folder=clone) == ""
    assert {path.name for path in parcels.iterdir()} == {"parcels.py", "shop.py", "__pycache__"}
    newcomer.types("rm", "-r", str(clone), str(parcels), folder=newcomer.projects)
    assert newcomer.files() == before


def _of_the_readme() -> tuple[list[str], str, str]:
    """The two lines that install and start, the program, and what is typed in another terminal."""
    [shop] = blocks("README.md", "python")
    begun, asked, *_ = blocks("README.md")
    return begun.splitlines(), shop, asked


def _an_own_workflow(newcomer: Newcomer, command: str, folder: Path) -> None:
    """Three steps of which one fails: found and repaired by the command line alone."""

    def ductor(*arguments: str) -> str:
        return newcomer.types(command, *arguments, folder=folder)

    newcomer.hears("parcels:app is running")
    ductor("start", "send", "parcel-1", "--input", '"a book"')
    newcomer.types(command, "runs", "watch", "parcel-1", folder=folder, code=1)
    assert "parcel-1" in ductor("runs", "list", "--status", "failed")
    line = next(n for n, text in enumerate(PARCELS.splitlines(), start=1) if "PER_GRAM" in text)
    found = ductor("runs", "show", "parcel-1")
    assert f"NameError: name 'PER_GRAM' is not defined (at parcels.py:{line} in price)" in found
    (folder / "parcels.py").write_text(PARCELS.replace("PER_GRAM", "3"), "utf-8")
    newcomer.hears("parcels.py changed: coordinator and worker run the new code")
    ductor("retry", "parcel-1")
    assert "parcel-1 completed" in ductor("runs", "watch", "parcel-1")
    assert "18 cents" in ductor("runs", "show", "parcel-1")
