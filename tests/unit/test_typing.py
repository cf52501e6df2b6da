"""Users' type checkers see through the declarations: each right call is accepted, each wrong one refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests" / "typing" / "right_and_wrong.py"
_ERROR = re.compile(r"right_and_wrong\.py:(\d+): error: (.*)")


def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(CALLS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {int(line): text for line, text in _ERROR.findall(done.stdout)}
    lines = CALLS.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert wrong
    assert found.keys() - wrong == set(), {n: found[n] for n in found.keys() - wrong}
    assert wrong - found.keys() == set(), [lines[n - 1] for n in sorted(wrong - found.keys())]
