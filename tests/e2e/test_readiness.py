"""``/readyz`` is red within seconds of Kafka or Postgres gone, says which, and is green again when they are back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.commands import COMMAND, Folder, clean_environment, descendants
from support import free_port, until

from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.postgres import EmbeddedPostgres

RED_WITHIN_MS = 10_000
"""What is promised. ``until`` gives a busy machine three times as long, so that a pass here says "red", not "in time":
that the bounds add up to less than ten seconds is shown by ``unit/test_readiness.py``."""
SHOP = 'from ductor_stream import App\napp = App("shop")\n@app.step\ndef f() -> None: ...\n'


class Process:
    """A ``serve`` with its health port."""

    def __init__(self, child: subprocess.Popen[bytes], port: int) -> None:
        self.child, self.port = child, port

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError as error:
            return 0, str(error)

    def red(self, word: str, *services: str) -> list[str]:
        """Wait until it is not ready, for a reason with that word in each of these services."""

        def reasons() -> list[str]:
            status, body = self.get("/readyz")
            assert status == 503, (status, body)
            found: list[str] = json.loads(body)["reasons"]
            for service in services:
                assert any(reason.startswith(f"{service}: ") and word in reason for reason in found), found
            return found

        return until(reasons, within_ms=RED_WITHIN_MS, what=f"red for {word}")

    def green(self) -> None:
        """Wait until it is ready."""

        def ready() -> bool:
            seen = self.get("/readyz")
            assert seen[0] == 200, seen
            return True

        until(ready, within_ms=60_000, what="green")


@pytest.fixture
def served(own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Process]:
    folder = Folder(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    port = free_port()
    servers = {"DUCTOR_KAFKA_BOOTSTRAP": own_kafka.bootstrap, "DUCTOR_DATABASE_URL": own_postgres.url}
    environment = clean_environment() | servers
    folder.ok("migrate", "--database", own_postgres.url)
    folder.ok("topics", "create", "shop:app", "--kafka", own_kafka.bootstrap)
    command = [*COMMAND, "serve", "shop:app", "--health-port", str(port)]
    with (tmp_path / "serve.err").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=log)
    try:
        yield Process(process, port)
    finally:
        process.terminate()
        process.wait(60)


def test_red_while_a_server_is_away_and_green_again(
    served: Process, own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    served.green()
    assert served.get("/healthz")[0] == 200
    own_postgres.kill()
    served.red("Postgres", "coordinator")
    assert served.get("/healthz")[0] == 200
    own_postgres.restart()
    served.green()
    own_kafka.kill()
    served.red("Kafka", "coordinator", "worker")
    own_kafka.restart()
    served.green()
    metrics = served.get("/metrics")[1]
    assert 'ductor_partitions_owned{app="shop"}' in metrics
    assert 'ductor_worker_slots{app="shop",queue="default"} 20.0' in metrics


@contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """A server that hangs: its sockets are open, and nothing answers."""
    assert pid is not None
    pids = [pid, *descendants(pid)]
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in pids:
            os.kill(each, signal.SIGCONT)


def test_red_while_a_server_hangs_and_green_again(
    served: Process, own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    served.green()
    with frozen(own_postgres.pid):
        served.red("Postgres", "coordinator")
        assert served.get("/healthz")[0] == 200
    served.green()
    with frozen(own_kafka.pid):
        served.red("Kafka", "coordinator", "worker")
    served.green()


def test_a_process_that_is_told_to_stop_ends_while_kafka_is_gone(served: Process, own_kafka: EmbeddedKafka) -> None:
    served.green()
    with frozen(own_kafka.pid):
        served.red("Kafka", "coordinator", "worker")
        served.child.terminate()
        until(lambda: served.child.poll() is not None, within_ms=35_000, what="the end, within the grace period")
    assert served.child.returncode == 0
