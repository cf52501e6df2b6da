"""Several apps in one process: ``coordinator a:app b:app`` and ``worker a:app b:app``, each in its own namespace."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.commands import COMMAND, Folder, clean_environment
from support import free_port, fresh_name, until

from ductor_stream.kafka.topics import AdminConfig, delete_topics, plan
from ductor_stream.protocol.topics import Topics

if TYPE_CHECKING:
    from servers import KafkaServer

APP = """
from ductor_stream import App, Run
import parts

app = App({name!r})
app.include(parts.app)

@app.step
def greet(word: str) -> str:
    return f"{name} says {{word}}"

@app.workflow
async def hello(run: Run, word: str) -> str:
    return await run.step(parts.loud, await run.step(greet, word))
"""
PARTS = """
from ductor_stream import App

app = App("parts")

@app.step(queue="parts")
def loud(word: str) -> str:
    return word.upper()
"""


class Both(Folder):
    """A folder with two apps that share a module, and the servers in the environment of its commands."""

    def __init__(self, path: Path, kafka: str, database: str) -> None:
        super().__init__(path)
        self.environment = {"DUCTOR_KAFKA_BOOTSTRAP": kafka, "DUCTOR_DATABASE_URL": database}
        self.names = {module: fresh_name(module) for module in ("shop", "bank")}
        (path / "parts.py").write_text(PARTS, "utf-8")
        for module, name in self.names.items():
            (path / f"{module}.py").write_text(APP.format(name=name), "utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=self.path, env=clean_environment() | self.environment, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def service(self, role: str) -> Iterator[int]:
        """A process that serves both; its health port. It ends in good order."""
        port, log = free_port(), self.path / f"{role}.log"
        command = [*COMMAND, role, "shop:app", "bank:app", "--health-port", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.path, env=clean_environment() | self.environment, stdout=out, stderr=out
            )
        try:
            until(lambda: get(port, "/readyz"), within_ms=60_000, what=f"the {role}")
            yield port
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text("utf-8")
        finally:
            process.kill()
            process.wait(30)


def get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        raise AssertionError(str(error)) from error


@pytest.fixture
def both(kafka: KafkaServer, runs_database: str, tmp_path: Path) -> Iterator[Both]:
    folder = Both(tmp_path, kafka.bootstrap, runs_database)
    for module in folder.names:
        folder.ok("topics", "create", f"{module}:app", "--partitions", "2")
    yield folder
    for name in folder.names.values():
        topics = Topics(name)
        config = AdminConfig(bootstrap=kafka.bootstrap, topics=topics)
        delete_topics(config, [each.name for each in plan(topics, ["default", "parts"])])


def test_one_coordinator_and_one_worker_serve_two_apps(both: Both) -> None:
    with both.service("coordinator") as coordinator, both.service("worker") as worker:
        for name in both.names.values():
            both.ok("start", "hello", "run-1", "--input", '"hi"', "--namespace", name)
        for name in both.names.values():
            both.ok("runs", "watch", "run-1", "--within", "30", "--namespace", name)
            assert both.json("runs", "show", "run-1", "--namespace", name)["result"] == f"{name} says hi".upper()
        for name in both.names.values():
            assert f'ductor_runs_closed_total{{app="{name}",outcome="completed"}} 1.0' in get(coordinator, "/metrics")
            told = get(worker, "/metrics")
            for queue in ("default", "parts"):
                assert f'ductor_worker_attempts_total{{app="{name}",outcome="completed",queue="{queue}"}} 1.0' in told
