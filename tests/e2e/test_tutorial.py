"""``docs/tutorial.md``, typed in as it stands: its files written, its commands run in their order, their answers compared."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.commands import Folder, alive, clean_environment, descendants
from pages import ROOT, fenced
from support import until

PAGE = ROOT / "docs/tutorial.md"
READS = ("ductor-stream runs show", "ductor-stream runs list")
"""What may be asked again until the answer is there: the page's reader would look once more too."""

INSTALLS = "pip install"
IN_EFFECT = "{} changed: coordinator and worker run the new code"
"""What `dev` says of a file, and the page tells its reader to wait for."""

WITHIN_MS = 60_000


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block with what it has to say."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *told = part.splitlines()
        yield command, told


def written(folder: Path, block: str) -> str:
    """A whole file, or one function of it in the place of its former self; the file's name."""
    head, _, code = block.partition("\n")
    name, _, function = head.removeprefix("# ").partition(": ")
    path = folder / name
    if not function:
        path.write_text(code, "utf-8")
        return name
    source = path.read_text("utf-8")
    [old] = [node for node in ast.parse(source).body if getattr(node, "name", "") == function]
    assert isinstance(old, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = source.splitlines(keepends=True)
    lines[old.decorator_list[0].lineno - 1 : old.end_lineno] = [code]
    path.write_text("".join(lines), "utf-8")
    return name


class Reader:
    """Somebody who types the page in."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.dev: subprocess.Popen[bytes] | None = None
        self.processes: list[int] = []
        programs = str(Path(sys.executable).parent)
        self.environment = clean_environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def writes(self, block: str) -> None:
        """Type a file in; while `dev` runs, wait until it says that the new code is in effect."""
        before = self.folder.errors("dev") if self.dev is not None else ""
        line = IN_EFFECT.format(written(self.folder.path, block))
        if self.dev is not None:
            until(lambda: self.told("err").count(line) > before.count(line), within_ms=WITHIN_MS, what=line)

    def types(self, command: str, told: list[str]) -> None:
        if command.startswith(INSTALLS):
            return
        if command.startswith("ductor-stream dev ") and command.split()[2] not in ("stop", "reset", "status"):
            self.dev = self.folder.start(*command.split()[1:])
            assert told, "the page says how its reader knows that dev is ready"
            until(lambda: all(line in self.told("out") for line in told), within_ms=90_000, what="dev")
            self.processes = [self.dev.pid, *descendants(self.dev.pid)]
        elif command.startswith(READS):
            until(lambda: self.answered(command, told), within_ms=WITHIN_MS, what=command)
        else:
            assert self.answered(command, told)

    def told(self, where: str) -> str:
        """What `dev` has said so far, while it runs."""
        assert self.dev is not None
        if self.dev.poll() is not None:
            raise RuntimeError(f"dev has ended: {self.folder.errors('dev')}")
        return self.folder.output("dev") if where == "out" else self.folder.errors("dev")

    def answered(self, command: str, told: list[str]) -> bool:
        """Whether it succeeds and says all that."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder.path, env=self.environment, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}{done.stdout}"
        missing = [line for line in told if line not in done.stdout]
        assert not missing, f"{command} does not say {missing}: {done.stdout}"
        return True

    def end(self) -> None:
        if self.dev is not None and self.dev.poll() is None:
            self.dev.send_signal(signal.SIGINT)
            self.dev.wait(60)


def test_the_tutorial_typed_in_as_it_stands(tmp_path: Path) -> None:
    assert IN_EFFECT.format("shop.py") in PAGE.read_text("utf-8")
    reader = Reader(Folder(tmp_path))
    typed = 0
    try:
        for language, block, _ in fenced(PAGE):
            if language == "python":
                reader.writes(block)
            for command, told in commands(block) if language == "console" else ():
                reader.types(command, told)
                typed += 1
    finally:
        reader.end()
    assert typed > 20
    assert not (tmp_path / ".ductor").exists() and alive(reader.processes) == []
