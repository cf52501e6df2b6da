"""Confluent's wire format with a real schema registry, and with Confluent's own serializers on the other side."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fleet import Fleet, fleet_of
from rig import Rig
from support import free_port, until

from ductor_stream.dev.jvm import java, java_environment
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch
from ductor_stream.errors import InvalidConfig
from ductor_stream.protocol.registry import ConfluentRegistry

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".tools" / "apicurio"

APP = """
from ductor_stream import App, Run

app = App("registered")
word = app.signal("word", str)

@app.step
async def double(number: int) -> int:
    return 2 * number

@app.workflow
async def doubled(run: Run, number: int) -> str:
    return f"{await run.wait_signal(word)} {await run.step(double, number)}"
"""


def schema(message: str, /, **field: Any) -> str:
    """One of ours, with another field behind its own if one is given."""
    found = json.loads((ROOT / "schemas" / f"{message}.avsc").read_text("utf-8"))
    found["fields"] += [field] if field else []
    return json.dumps(found)


Answer = TypeVar("Answer")


class Registry:
    """Apicurio by Confluent's API, in memory. As a registry should be set up for contracts that evolve: FULL_TRANSITIVE."""

    def __init__(self, folder: Path) -> None:
        if not (PROGRAM / "quarkus-run.jar").exists():
            pytest.fail("the schema registry is not there: `make tools` fetches it, or says why not", pytrace=False)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        listen = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
        listen |= {"QUARKUS_MANAGEMENT_HOST": "127.0.0.1", "QUARKUS_MANAGEMENT_PORT": str(free_port())}
        memory = {"APICURIO_STORAGE_KIND": "sql", "APICURIO_STORAGE_SQL_KIND": "h2"}
        flags = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "quarkus-run.jar"]
        environment = java_environment() | listen | memory
        spec = ServerSpec(
            "registry", [str(java()), *flags], PROGRAM, folder / "registry.log", signal.SIGTERM, environment=environment
        )
        self.process: ServerProcess = launch(spec)
        self.client = SchemaRegistryClient.new_client({"url": self.url, "max.retries": 0, "timeout": 20})

    def ready(self) -> bool:
        assert self.process.alive(), "the registry has ended: see its log"
        try:
            return self.client.get_subjects() == []
        except Exception as error:  # the client lets its HTTP library's errors through
            raise AssertionError(str(error)) from error

    def answers(self, question: Callable[[], Answer]) -> Answer:
        """What the registry answers; one that says nothing for long, on a machine with much to do, is asked again."""

        def asked() -> tuple[Answer]:
            try:
                return (question(),)
            except Exception as error:  # the client lets its HTTP library's errors through
                if "timed out" not in str(error):
                    raise
                raise AssertionError(str(error)) from error

        return until(asked, within_ms=60_000, what="the registry's answer")[0]

    def writes(self, text: str, value: dict[str, Any]) -> bytes:
        """A record as Confluent's serializer makes it; registers the schema."""
        strategy = {"subject.name.strategy": record_subject_name_strategy}
        context = SerializationContext("any", MessageField.VALUE)
        found = self.answers(lambda: AvroSerializer(self.client, text, conf=strategy)(value, context))
        assert isinstance(found, bytes)
        return found

    def reads(self, value: bytes) -> dict[str, Any]:
        """A record as Confluent's deserializer reads it."""
        context = SerializationContext("any", MessageField.VALUE)
        found = self.answers(lambda: AvroDeserializer(self.client)(value, context))
        assert isinstance(found, dict)
        return found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path)
    try:
        until(made.ready, within_ms=60_000, what="the registry")
        with made.client:
            made.answers(lambda: made.client.set_compatibility(level="FULL_TRANSITIVE"))
            yield made
    finally:
        made.process.end(signal.SIGKILL, 10)


@pytest.fixture
def fleet(rig: Rig, registry: Registry, tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator and a worker that produce by the registry."""
    folder = tmp_path / "registered"
    folder.mkdir()
    (folder / "registered.py").write_text(APP, "utf-8")
    # It has to answer within two seconds, once: what is away is then seen soon.
    options = f'url = "{registry.url}"\ntimeout = 2\n"max.retries" = 0\n'
    (folder / "ductor.toml").write_text(f'encoding = "registry"\n[schema_registry]\n{options}', "utf-8")
    with fleet_of(rig, "registered:app") as made:
        made.start("coordinator", folder=folder)
        made.start("worker", folder=folder)
        made.until_ready()
        yield made


def test_runs_by_confluents_own_serializers(rig: Rig, registry: Registry, fleet: Fleet) -> None:
    started = registry.writes(schema("run.start"), {"run_id": "r", "workflow": "doubled", "input": b"21"})
    # A producer that is a version ahead of us: its schema has a field more.
    newer = schema("run.signal", name="mood", type=["null", "string"], default=None)
    signalled = registry.writes(newer, {"run_id": "r", "name": "word", "payload": b'"twice"', "mood": "glad"})
    rig.send(rig.topics.run_events, "r", started)
    rig.send(rig.topics.run_events, "r", signalled)
    rig.until_status("completed", "r", within_ms=60_000)
    assert rig.run("r")["result"] == "twice 42"
    [task] = rig.read(rig.topics.tasks("default"))
    [result] = [registry.reads(record.value() or b"") for record in rig.read(rig.topics.attempt_results)]
    assert (task.value() or b"")[:1] == b"\0"
    told = registry.reads(task.value() or b"")
    assert (told["step"], told["run_id"]) == ("double", "r")
    assert (result["outcome"], result["output"], result["node_id"]) == ("completed", b"42", told["node_id"])
    subjects = {"ductor.v1.RunStart", "ductor.v1.RunSignal", "ductor.v1.Task", "ductor.v1.AttemptFinished"}
    assert subjects <= set(registry.answers(registry.client.get_subjects))
    # An id that nobody has registered.
    rig.send(rig.topics.run_events, "r", b"\0\0\0\x7f\xff" + started[5:])
    [letter] = until(rig.letters, within_ms=30_000, what="a dead letter")
    assert letter.reason == "unknown_schema"


def test_a_registry_that_stands_still_holds_up_and_loses_nothing(rig: Rig, registry: Registry, fleet: Fleet) -> None:
    """Frozen before any schema of the app was asked for: nothing can be read, nor written, until it answers again."""
    started = registry.writes(schema("run.start"), {"run_id": "r", "workflow": "doubled", "input": b"21"})
    os.kill(registry.process.pid, signal.SIGSTOP)
    try:
        rig.send(rig.topics.run_events, "r", started)
        rig.signal("r", "thrice")
        [coordinator] = fleet.running("coordinator")
        until(lambda: "schema registry" in coordinator.log, within_ms=60_000, what="a line about the registry")
        assert rig.run("r") == {} and rig.letters() == []
    finally:
        os.kill(registry.process.pid, signal.SIGCONT)
    rig.until_status("completed", "r", within_ms=60_000)
    assert rig.run("r")["result"] == "thrice 42" and rig.letters() == []


def test_our_schemas_may_grow_and_not_break(registry: Registry) -> None:
    ours = ConfluentRegistry({"url": registry.url})
    with ours._client:
        for path in (ROOT / "schemas").iterdir():
            text = path.read_text("utf-8")
            subject = "ductor.v1." + json.loads(text)["name"]
            assert ours.schema_id(subject, text) == ours.schema_id(subject, text)
            optional = schema(path.stem, name="more", type=["null", "string"], default=None)
            assert ours.schema_id(subject, optional) > ours.schema_id(subject, text)
            with pytest.raises(InvalidConfig, match=f"refuses the schema of {subject}"):
                ours.schema_id(subject, schema(path.stem, name="needed", type="string"))
        assert ours.schema_text(32_767) is None
        assert json.loads(ours.schema_text(1) or "")["namespace"] == "ductor.v1"
