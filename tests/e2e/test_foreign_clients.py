"""Clients that know nothing of this library: any partitioner drives its runs, and a worker of one page works for them (R12)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message, Producer
from e2e.commands import Folder
from e2e.shell import KCAT, Shell
from fleet import Fleet, fleet_of
from pages import ROOT, blocks
from rig import Rig, opened
from support import fresh_name

from ductor_stream.dev.jars import ensure_jars
from ductor_stream.dev.jvm import class_path, java, java_environment

if TYPE_CHECKING:
    from servers import KafkaServer

JAVA = Path(__file__).with_name("java")
RUNS = 24

Lines = list[tuple[str, str]]
Produce = Callable[[Rig, Lines], dict[str, int]]
"""Produces (key, value) to ``run-events``; gives the partition by key."""


@contextmanager
def plain_worker(rig: Rig) -> Iterator[None]:
    """``examples/plain_worker.py`` as a process; ends in good order by SIGTERM."""
    command = [sys.executable, str(ROOT / "examples" / "plain_worker.py"), rig.bootstrap, rig.namespace, "payments"]
    with (rig.folder / "plain_worker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (rig.folder / "plain_worker.log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (rig.folder / "plain_worker.log").read_text()
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture(scope="module")
def served(kafka: KafkaServer, runs_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two coordinators, and the plain worker alone."""
    folder = tmp_path_factory.mktemp("foreign")
    with (
        opened(kafka.bootstrap, runs_database, folder, partitions=4, queues=["payments"]) as rig,
        fleet_of(rig, "foreign:app") as fleet,
        plain_worker(rig),
    ):
        fleet.start("coordinator")
        fleet.start("coordinator")
        fleet.until_ready()
        yield fleet


def by_confluent(rig: Rig, lines: Lines) -> dict[str, int]:
    """librdkafka as it comes, as in Python, Go, Node and C++."""
    found: dict[str, int] = {}

    def heard(error: object, message: Message) -> None:
        assert error is None
        found[(message.key() or b"").decode()] = message.partition() or 0

    producer = Producer({"bootstrap.servers": rig.bootstrap})
    for key, value in lines:
        producer.produce(rig.topics.run_events, value, key, on_delivery=heard)
    assert producer.flush(60) == 0
    return found


def by_kcat(rig: Rig, lines: Lines) -> dict[str, int]:
    """As the page of the wire has it."""
    text = "".join(f"{key}:{value}\n" for key, value in lines)
    command = ["kcat", "-P", "-b", rig.bootstrap, "-t", rig.topics.run_events, "-K:"]
    subprocess.run(command, input=text.encode(), check=True, timeout=60)
    keys = {key.encode() for key, _ in lines}
    records = [each for each in rig.read(rig.topics.run_events) if each.key() in keys]
    return {(each.key() or b"").decode(): each.partition() or 0 for each in records}


def by_java(rig: Rig, lines: Lines) -> dict[str, int]:
    """The Java client as it comes, out of the jars of the tests' Kafka (see Produce.java)."""
    path = f"{JAVA}:{class_path(ensure_jars())}"
    command = [str(java()), "-cp", path, "Produce", rig.bootstrap, rig.topics.run_events]
    text = "".join(f"{key}:{value}\n" for key, value in lines).encode()
    done = subprocess.run(command, input=text, capture_output=True, check=False, timeout=120, env=java_environment())
    assert done.returncode == 0, done.stderr.decode()
    pairs = [line.rpartition(":") for line in done.stdout.decode().splitlines()]
    return {key: int(partition) for key, _, partition in pairs}


CLIENTS: dict[str, tuple[Produce, bool]] = {
    "confluent-kafka, crc32": (by_confluent, False),
    ("kcat, crc32" if shutil.which("kcat") else "kcat is not here, its partitioner by confluent-kafka"): (
        by_kcat if shutil.which("kcat") else by_confluent,
        False,
    ),
    "Java, murmur2": (by_java, True),
}
"""By name: how it produces, and whether its partitioner takes every record home."""


@pytest.mark.parametrize("client", CLIENTS)
def test_events_of_every_client_drive_their_runs(served: Fleet, client: str) -> None:
    """R12: starts and signals of any partitioner; no record of theirs has a header, an id, or anything of ours."""
    rig, (produce, goes_home) = served.rig, CLIENTS[client]
    names = {f"{fresh_name('order')}-{n}": f"Zoë {n}" for n in range(RUNS)}
    starts = [(run_id, {"workflow": "fulfil", "input": {"id": run_id, "name": name}}) for run_id, name in names.items()]
    signals = [(run_id, {"name": "approved", "payload": True}) for run_id in names]
    lines = [(run_id, json.dumps({"type": "run.start", "run_id": run_id, **body})) for run_id, body in starts]
    lines += [(run_id, json.dumps({"type": "run.signal", "run_id": run_id, **body})) for run_id, body in signals]

    partitions = produce(rig, lines)
    assert partitions.keys() == names.keys()
    at_home = {run_id for run_id, partition in partitions.items() if partition == rig.home(run_id)}
    assert (at_home == names.keys()) is goes_home, "this client's partitioner is not what the test takes it for"

    rig.until_status("completed", *names, within_ms=60_000)
    for run_id, name in names.items():
        assert rig.run(run_id)["result"] == [f"receipt of {run_id}", True, name]
    rig.check()
    assert rig.letters() == []


@pytest.mark.parametrize("kcat", [KCAT])
def test_the_line_on_the_page_of_the_wire_starts_a_run(served: Fleet, tmp_path: Path, kcat: str) -> None:
    """docs/wire.md, as it stands, but for the namespace."""
    rig, shell = served.rig, Shell(Folder(tmp_path))
    [line] = [block for block in blocks("docs/wire.md") if block.startswith("echo")]
    assert line.count("ductor.shop.") == 1
    shell.environment["BOOTSTRAP"] = rig.bootstrap
    shell(line.replace("ductor.shop.", f"ductor.{rig.namespace}."))
    rig.until_status("running", "order-42")
    assert rig.run("order-42")["workflow"] == "fulfil"
    rig.send(rig.topics.run_events, "order-42", {"type": "run.terminate", "run_id": "order-42"})
    rig.until_status("terminated", "order-42")
