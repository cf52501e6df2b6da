"""Users' type checkers see through the declarations: each right call is accepted, each wrong one refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests" / "typing" / "right_and_wrong.py"
_ERROR = re.compile(r"right_and_wrong\.py:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
_EXPECTED = re.compile(r"# wrong: (.+) / (.+)$")
"""What mypy and pyright call it."""

Found = dict[int, set[str]]
"""Kinds of errors by line."""


def _mypy(folder: Path) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(CALLS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return _by_line((int(line), kind) for line, kind in _ERROR.findall(done.stdout))


def _pyright(folder: Path) -> Found:
    """By basedpyright, which is pyright as a wheel with its Node; in the mode that pyright has by default."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"include": [str(CALLS)], "typeCheckingMode": "standard"}), "utf-8")
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == 1, told
    errors = [each for each in told["generalDiagnostics"] if each["severity"] == "error"]
    return _by_line((each["range"]["start"]["line"] + 1, each["rule"].removeprefix("report")) for each in errors)


def _by_line(errors: Iterable[tuple[int, str]]) -> Found:
    found: Found = {}
    for line, kind in errors:
        found.setdefault(line, set()).add(kind)
    return found


@pytest.mark.parametrize("checker", [_mypy, _pyright])
def test_a_type_checker_accepts_what_is_right_and_refuses_what_is_wrong(
    checker: Callable[[Path], Found], tmp_path: Path
) -> None:
    found = checker(tmp_path)
    lines = CALLS.read_text().splitlines()
    marked = {number: match for number, line in enumerate(lines, 1) if (match := _EXPECTED.search(line))}
    assert marked and len(marked) == sum("  # wrong" in line for line in lines)
    wrong = {number: set(match[1 if checker is _mypy else 2].split(", ")) for number, match in marked.items()}
    assert found.keys() - wrong.keys() == set(), {n: found[n] for n in found.keys() - wrong.keys()}
    assert wrong.keys() - found.keys() == set(), [lines[n - 1] for n in sorted(wrong.keys() - found.keys())]
    assert found == wrong
