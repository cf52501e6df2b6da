"""Lines of README and of pages that are no tutorial, typed in as they stand, beside a running `dev`."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from e2e.commands import Folder
from e2e.shell import KCAT, Shell
from pages import ROOT, blocks
from support import free_port, until

sys.path.insert(0, str(ROOT / "examples/orders"))
import incoming

ORDERS = "examples/orders/README.md"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def shell(folder: Folder) -> Shell:
    return Shell(folder)


def shop() -> str:
    """README's program."""
    [program] = [block for block in blocks("README.md", "python") if block.startswith("# shop.py")]
    return program


@pytest.mark.parametrize("kcat", [KCAT])
def test_the_readmes_line_starts_a_run_and_the_operators_lines_delete_none(
    folder: Folder, shell: Shell, kcat: str
) -> None:
    """Without any library, behind ``eval "$(ductor-stream env)"``."""
    [line] = [block for block in blocks("README.md") if "| kcat " in block]
    [promise] = re.findall(r'`(eval "\$\(ductor-stream env\)")`', (ROOT / "README.md").read_text("utf-8"))
    (folder.path / "shop.py").write_text(shop(), "utf-8")
    with folder.running("shop:app"):
        shell(f"{promise}\n{line}")
        assert folder.run("runs", "watch", "order-42").returncode == 0
        shown = folder.json("runs", "show", "order-42")
        assert (shown["workflow"], shown["status"], shown["result"]) == ("fulfil", "completed", "receipt for order-42")
        [purge] = [block for block in blocks("docs/operations.md") if block.startswith("ductor-stream purge")]
        [rights] = [block for block in blocks("docs/security.md") if block.startswith("ductor-stream acls")]
        assert "kafka-acls.sh" in shell(rights) and "User:shop-worker" in shell(rights)
        assert shell(f"{promise}\n{purge}").count("0 runs") == 2
        [first] = [block for block in blocks("docs/operations/runbook.md") if block.startswith("ductor-stream doctor")]
        looked = shell(first.replace("MODULE:APP", "shop:app"))
        assert "7 topics" in looked and "wrong" not in looked, looked
        assert [line.split("  ")[0] for line in looked.splitlines()[-2:]] == ["run id", "id"], "no runs, no letters"
        assert folder.json("runs", "show", "order-42")["status"] == "completed"


def ready(port: int) -> bool:
    """Whether the process with that health port says so."""
    try:
        urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
    except OSError:
        return False
    return True


def test_the_unit_of_systemd_runs_a_coordinator(folder: Folder, shell: Shell) -> None:
    """Its command with its environment, beside those of `dev`; ready, and ended in order within its time."""
    unit = configparser.ConfigParser()
    [text] = [block for block in blocks("docs/deployment.md") if block.startswith("[Service]")]
    unit.read_string(text)
    service = unit["Service"]
    (folder.path / "shop.py").write_text(shop(), "utf-8")
    port = free_port()
    with folder.running("shop:app"):
        exports = [line.removeprefix("export ") for line in shell("ductor-stream env").splitlines()]
        command = service["ExecStart"].removeprefix("/opt/shop/bin/")
        (folder.path / "unit.sh").write_text(
            "\n".join(["set -a", *exports, f"DUCTOR_HEALTH_PORT={port}", f"exec {command}"]), "utf-8"
        )
        with (folder.path / "unit.log").open("wb") as log:
            process = subprocess.Popen(["sh", "unit.sh"], cwd=folder.path, env=shell.environment, stderr=log)
        try:
            until(lambda: ready(port), within_ms=60_000, what="the coordinator")
            process.terminate()
            assert process.wait(int(service["TimeoutStopSec"])) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kcat", [KCAT])
def test_the_orders_of_the_example(folder: Folder, shell: Shell, kcat: str) -> None:
    shutil.copytree(ROOT / "examples", folder.path / "examples")
    begin, send, review = blocks(ORDERS)
    with folder.running(begin.removeprefix("ductor-stream dev ").strip()) as dev:
        produce, rest = send.replace("BROKER", dev["kafka_bootstrap"]).split("\n", 1)
        shell(produce)
        assert folder.run("runs", "watch", "order-1").returncode == 0
        shown = shell(rest)
        assert "order-20" in shown and "started fulfil version 1" in shown, shown
        dear = next(
            value["input"]
            for _, value in incoming.records(200)
            if float(value.get("input", {}).get("total", 0)) > 1_000
        )
        folder.ok("start", "fulfil", "dear", "--input", incoming.json.dumps(dear))
        missing = "signal reviewed is missing"
        assert missing in (ROOT / ORDERS).read_text("utf-8")
        until(lambda: missing in folder.ok("runs", "show", "dear"), within_ms=30_000, what=missing)
        shell(review.replace("order-1", "dear"))
        assert folder.run("runs", "watch", "dear").returncode == 0


def test_why_a_rule_decided_so(folder: Folder, shell: Shell) -> None:
    """The page shows what `runs show` ends with."""
    page = "docs/guides/rules.md"
    [told] = blocks(page)
    (folder.path / "shop.py").write_text(blocks(page, "python")[0], "utf-8")
    facts = re.search(r"facts: (.*)", told)
    assert facts is not None
    (folder.path / "order.json").write_text(facts.group(1), "utf-8")
    [decide] = re.findall(r"`(ductor-stream decide shop:app [^`]*)`", (ROOT / page).read_text("utf-8"))
    assert "row gold hit" in shell(decide)
    with folder.running("shop:app"):
        folder.ok("start", "sell", "order-42", "--input", facts.group(1))
        assert folder.run("runs", "watch", "order-42").returncode == 0
        shown = shell("ductor-stream runs show order-42")
        assert shown.endswith(told), shown
