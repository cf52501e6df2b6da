"""``DUCTOR_ENCODING``: what processes and commands write is Avro, bare or by a schema registry, and all of it is read."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator

import pytest
from fleet import fleet_of, gate
from http_server import Answer, Asked, HttpServer
from rig import Rig
from support import until

from ductor_stream import SyncClient
from ductor_stream.config import load


class Registry(HttpServer):
    """A schema registry, as far as coordinators, workers and clients need one. ``subjects`` is what was registered."""

    def __init__(self) -> None:
        self.subjects: dict[str, str] = {}
        self._schemas: dict[str, int] = {}
        self._lock = threading.Lock()
        super().__init__()

    def next_answer(self, asked: Asked) -> Answer:
        """Ids from 1 on, one for each schema."""
        path = asked.path.partition("?")[0].strip("/").split("/")
        with self._lock:
            if asked.method == "POST":
                text = self.subjects[path[1]] = asked.json["schema"]
                return self._answer({"id": self._schemas.setdefault(text, len(self._schemas) + 1)})
            found = [text for text, number in self._schemas.items() if str(number) == path[-1]]
            return self._answer({"schema": found[0]}) if found else Answer(404, b'{"error_code": 40403}')

    def _answer(self, body: object) -> Answer:
        return Answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Closed with the test."""
    server = Registry()
    yield server
    server.close()


@pytest.mark.parametrize(("encoding", "marker"), [("avro", b"\xc3\x01"), ("registry", b"\0")])
def test_runs_complete_in_every_encoding(rig: Rig, registry: Registry, encoding: str, marker: bytes) -> None:
    """Starts, tasks, results, heartbeats, stops and lifecycle events; a client without a database hears how a run ended."""
    with fleet_of(rig) as fleet:
        environment = fleet.settings
        environment["DUCTOR_ENCODING"] = encoding
        if encoding == "registry":
            environment["DUCTOR_SCHEMA_REGISTRY_URL"] = registry.url
        fleet.start("coordinator")
        fleet.start("worker")
        fleet.until_ready()
        closed = gate(rig)
        fleet.say("start", "held", "stopped", "--input", json.dumps(closed.name))
        fleet.say("start", "chain", "done", "--input", "3")
        with SyncClient.from_settings(rig.namespace, load(environment, kafka_bootstrap=rig.bootstrap)) as client:
            assert client.start("chain", 3, run_id="heard").result(timeout=60) == [0, 1, 2]
        rig.until_status("completed", "done")
        assert rig.run("done")["result"] == [0, 1, 2]
        until(lambda: [each for each in fleet.effects() if each["step"] == "gated"], what="an attempt that waits")
        until(lambda: rig.rows("select run_id from eec_open_attempt where ns = {ns}"), what="its heartbeat heard")
        fleet.say("terminate", "stopped")
        rig.until_status("terminated", "stopped")
        topics = rig.topics
        until(lambda: rig.read(topics.attempt_control), what="the stop")
        written = [topics.run_events, topics.tasks("default"), topics.attempt_results, topics.attempt_control]
        written.append(topics.run_lifecycle)
        values = {topic: [message.value() or b"" for message in rig.read(topic)] for topic in written}
        assert [len(values[topic]) for topic in written[:2]] == [4, 8]
        assert len(values[topics.attempt_results]) >= 8, "seven results and a heartbeat"
        assert len(values[topics.run_lifecycle]) == 6, "three runs began and ended"
        assert {value[: len(marker)] for value in itertools.chain(*values.values())} == {marker}
        assert rig.letters() == []
        closed.touch()
    wanted = {"RunStart", "RunTerminate", "Task", "AttemptFinished", "AttemptHeartbeat", "AttemptStop", "RunLifecycle"}
    assert set(registry.subjects) >= ({f"ductor.v1.{name}" for name in wanted} if encoding == "registry" else set())
