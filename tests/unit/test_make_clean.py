"""`make clean` leaves what is committed, and nothing of what is ignored."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_all_that_git_ignores_is_removed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    committed = {"Makefile"}
    for line in (ROOT / ".gitignore").read_text("utf-8").split():
        path = tmp_path / line.removeprefix("!").replace("*", "made")
        path.parent.mkdir(parents=True, exist_ok=True)
        if line.endswith("/"):
            path.mkdir()
            (path / "a file").touch()
        else:
            path.touch()
        committed |= {str(path.relative_to(tmp_path))} if line.startswith("!") else set()
    assert "bench/out/.gitkeep" in committed
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == committed
    assert {path.name for path in tmp_path.rglob("*") if path.is_dir()} == {"bench", "out"}
