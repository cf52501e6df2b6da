"""Where it runs and who reads along: a home that cannot be written, a uid that nobody knows, a log that everybody may see."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e import commands
from e2e.commands import Folder

from ductor_stream.dev.paths import cache_dirs

SHOP = """
from ductor_stream import App, Run

app = App("shop")

@app.step
def charge(order: str) -> str:
    return f"receipt for {order}"

@app.workflow
async def fulfil(run: Run, order: str) -> str:
    return await run.step(charge, order)
"""


def test_a_home_that_cannot_be_written_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in many containers. What was fetched is where DUCTOR_CACHE_DIR says, all else in the project's folder."""
    monkeypatch.setenv("DUCTOR_CACHE_DIR", str(cache_dirs()[0]))
    monkeypatch.setenv("HOME", "/proc/none")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = Folder(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with folder.running("shop:app"):
        folder.ok("start", "fulfil", "order-1", "--input", '"a"')
        folder.ok("runs", "watch", "order-1", "--within", "60")
        assert [run["status"] for run in folder.json("runs", "list")] == ["completed"]
        assert folder.json("doctor", "shop:app")
    assert "Traceback" not in folder.errors("dev")


UNKNOWN_UID = """
import ctypes, os, pathlib, runpy
user = os.getuid()
if ctypes.CDLL(None).unshare(0x10000000) == 0:  # a namespace of users: to all others the files stay ours
    pathlib.Path("/proc/self/uid_map").write_text(f"54321 {user} 1")
else:  # none is to be had here: Python at least is told that number
    os.getuid = os.geteuid = lambda: 54321
runpy.run_module("ductor_stream.cli.main", run_name="__main__", alter_sys=True)
"""


def test_a_uid_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """As some container platforms give: no passwd entry, no HOME. Postgres refuses it, all else works."""
    monkeypatch.setenv("DUCTOR_CACHE_DIR", str(cache_dirs()[0]))
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(commands, "COMMAND", [sys.executable, "-c", UNKNOWN_UID])
    folder = Folder(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    refused = folder.run("dev", "shop:app")
    assert refused.returncode == 1 and refused.stdout == ""
    told, more = refused.stderr.splitlines()
    assert told == (
        "error: Postgres needs a passwd entry for uid 54321: add one to /etc/passwd, "
        "or use a database that exists (--database URL)"
    )
    assert "ductor-stream explain dev_stack" in more
    with folder.running("shop:app", "--database", database_url):
        folder.ok("start", "fulfil", "order-1", "--input", '"a"')
        folder.ok("runs", "watch", "order-1", "--within", "60")
        assert [run["status"] for run in folder.json("runs", "list")] == ["completed"]
    assert "Traceback" not in folder.errors("dev")


PAY = """
from ductor_stream import App, Run, TerminalError

app = App("pay")
word = app.signal("word", str)

@app.step
def charge(card: str) -> str:
    return "MARKED result"

@app.step
def refuse(card: str) -> str:
    raise TerminalError("declined", type="Declined")

@app.workflow
async def pay(run: Run, card: str) -> str:
    run.log.info("paying")
    await run.step(charge, card)
    await run.wait_signal(word)
    return await run.step(refuse, card)
"""


def test_what_users_send_is_not_in_the_log(tmp_path: Path) -> None:
    """SECURITY.md: inputs, results and payloads of signals, in runs that fail too."""
    folder = Folder(tmp_path)
    (tmp_path / "pay.py").write_text(PAY, encoding="utf-8")
    with folder.running("pay:app"):
        folder.ok("start", "pay", "run-1", "--input", '"MARKED input"')
        folder.ok("signal", "run-1", "word", "--json-payload", '"MARKED payload"')
        assert folder.run("runs", "watch", "run-1", "--within", "60").returncode == 1
        assert "MARKED input" in json.dumps(folder.json("runs", "show", "run-1")), "who may read the run sees it"
    log = folder.errors("dev")
    assert "paying" in log and "run failed" in log and "Declined" in log
    assert "MARKED" not in log + folder.output("dev")
