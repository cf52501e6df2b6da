"""A process that never reaches a broker ends with 5, and says in two lines where it asked, for how long, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import free_port

from ductor_stream.cli.failures import UNREACHABLE
from ductor_stream.store.migrate import migrate

APP = "from ductor_stream import App\napp = App('shop')\n\n@app.step\nasync def pack() -> None: ...\n"
AT_ONCE = (
    "from ductor_stream.cli import main, running\n"
    "running.connected.__defaults__ = (0.0,)\n"  # instead of half a minute
    "main.main()\n"
)


@pytest.mark.parametrize("role", ["worker", "coordinator", "serve"])
def test_a_broker_that_is_not_there_is_named(role: str, database_url: str, tmp_path: Path) -> None:
    migrate(database_url)
    (tmp_path / "shop.py").write_text(APP, "utf-8")
    nowhere = f"127.0.0.1:{free_port()}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}
    environment |= {"DUCTOR_KAFKA_BOOTSTRAP": nowhere, "DUCTOR_DATABASE_URL": database_url}
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, role, "shop:app"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == UNREACHABLE, done.stderr
    error, remedy = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert error.startswith("error: Kafka does not ") and nowhere in error and "tried for 0 s" in error
    assert "`ductor-stream doctor`" in error
    assert "DUCTOR_KAFKA_BOOTSTRAP" in remedy and "`ductor-stream dev MODULE:app`" in remedy
