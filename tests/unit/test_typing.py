"""Users' type checkers see through the declarations: each right call is accepted, each wrong one refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests" / "typing" / "right_and_wrong.py"
_ERROR = re.compile(r"right_and_wrong\.py:(\d+): error: (.*)")


Found = dict[int, str]
"""Errors by line."""


def _mypy(folder: Path) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(CALLS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {int(line): text for line, text in _ERROR.findall(done.stdout)}


def _pyright(folder: Path) -> Found:
    """By basedpyright, which is pyright as a wheel with its Node; in the mode that pyright has by default."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"include": [str(CALLS)], "typeCheckingMode": "standard"}), "utf-8")
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == 1, told
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in told["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [_mypy, _pyright])
def test_a_type_checker_accepts_what_is_right_and_refuses_what_is_wrong(
    checker: Callable[[Path], Found], tmp_path: Path
) -> None:
    found = checker(tmp_path)
    lines = CALLS.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert wrong
    assert found.keys() - wrong == set(), {n: found[n] for n in found.keys() - wrong}
    assert wrong - found.keys() == set(), [lines[n - 1] for n in sorted(wrong - found.keys())]
