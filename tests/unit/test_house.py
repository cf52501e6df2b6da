"""The rules of the house, as tests: sizes, words, banned calls, what the repository may not name."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ductor_stream"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The one adapter of each thing that makes a run of the same code differ from another.
CLOCKS = {"clock.py", "worker/clock.py"}
RANDOM = {"wiring/coordinators.py", "engine/planners/run.py"}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_modules_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, "a module over 400 lines needs to be two"
    for function in _functions(ast.parse(text)):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= 70, f"{function.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_public_name_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, "the module has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", [p for p in MODULES if "engine" in p.parts], ids=_name)
def test_the_engine_is_pure(path: Path) -> None:
    """R2: no clock, randomness, environment or output in a tick (imports are checked by import-linter)."""
    banned = re.compile(r"\b(print|open|input)\(|datetime\.(now|utcnow|today)\(|random\.(random|randint)\(|uuid\.uuid")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = line.split("#")[0]
        if _name(path) not in RANDOM and '"""' not in code and "``" not in code:
            assert not banned.search(code), f"line {number}: {line.strip()}"


SERVICES = [p for p in MODULES if p.parent.name in ("coordinator",)]


@pytest.mark.parametrize("path", SERVICES, ids=_name)
def test_the_coordinator_takes_time_and_chance_from_its_ports(path: Path) -> None:
    imports = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not imports & {"time", "random", "uuid", "os", "socket"}


LINUX = re.compile(
    r"/(proc|sys)/|\b(prctl|s?epoll|inotify\w*|eventfd|memfd_create|os\.(sched_\w+|pidfd_\w+|splice|sendfile))\b|MSG_NOSIGNAL"
)
GUARDED = {"dev/cluster.py", "dev/process.py", "dev/trampoline.py"}
"""Modules that do what only Linux has, and only there."""


def test_what_only_linux_has_is_asked_for_on_linux_alone() -> None:
    found = {_name(path) for path in MODULES if LINUX.search(path.read_text())}
    assert found == GUARDED
    for name in sorted(GUARDED):
        assert re.search(r'sys\.platform (==|!=) "linux"', (PACKAGE / name).read_text()), f"{name} asks for no platform"


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


HOSTS = "|".join(
    ("pypi" + ".org", "pythonhosted" + ".org", "repo1.maven" + ".org", "registry.npmjs" + ".org", "crates" + ".io")
)
FOREIGN = re.compile(rf"{HOSTS}|/wo" + r"rk/|/root/\.py" + r"env")


def test_the_repository_stands_alone() -> None:
    """No package registry's host, no path of one machine."""
    for path in _tracked():
        if path.suffix in (".bin", ".png", ".avro"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found = FOREIGN.search(line)
            assert not found, f"{path.relative_to(ROOT)}:{number} names {found.group() if found else ''}"


UNFINISHED = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + r"Error|pragma: no " + r"cover"
)
BLOCKS = re.compile(r"(?<!\")\btime\.sleep\(")
SLEEPS = re.compile(r"(?<!\")\btime\.sleep\(|asyncio\.sleep\(0?\.?[1-9]")
SKIPPED = re.compile(r"pytest\.mark\.(skip|xfail)|pytest\.skip\(|flaky|reruns")


def test_nothing_is_left_unfinished_or_skipped() -> None:
    for path in _tracked():
        if path.suffix != ".py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            assert not UNFINISHED.search(line), where
            if path.is_relative_to(ROOT / "tests") and path != Path(__file__):
                assert not SKIPPED.search(line), where
                # Steps and workflows of test apps may sleep, and in unit tests they do so on a virtual clock.
                waits = path.name.startswith("test_") and not path.is_relative_to(ROOT / "tests" / "unit")
                naps = SLEEPS if waits else BLOCKS
                assert path.name == "support.py" or not naps.search(line), f"{where} sleeps in a test"
