"""``make mutate`` works: mutants of the smallest module of the engine are made, tried, and found by its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mutants_of_a_small_module_are_found(tmp_path: Path) -> None:
    for name in ("ductor_stream", "tests", "schemas", "examples", "docs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    # What a call for another module leaves behind.
    (tmp_path / "mutants/ductor_stream/engine").mkdir(parents=True)
    shutil.copy(ROOT / "ductor_stream/engine/ids.py", tmp_path / "mutants/ductor_stream/engine")
    command = [sys.executable, "-m", "mutation", "ids", "--tests", "tests/unit/engine/test_ids.py"]
    environment = {**os.environ, "PYTHONPATH": "tests", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    module, tried, killed, left = done.stdout.splitlines()[0].strip("| ").split(" | ")
    assert module == "`ids`"
    assert int(killed) >= 0.7 * int(tried) > 30, done.stdout
    assert int(left) == done.stdout.count("survived: ") + done.stdout.count("reached by no test: ")
