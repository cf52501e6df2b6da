"""The processes that the chart and the compose file describe, run for real until an order is through."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from deploy.containers import Container, of_pods, of_services
from deploy.tooling import ROOT, SMALLEST, composed, named, rendered
from support import fresh_name, until

if TYPE_CHECKING:
    from deploy.containers import Running
    from servers import KafkaServer

ORDERS = ROOT / "examples" / "orders"
RUNNING_WITHIN_MS = 120_000


@contextmanager
def running(containers: dict[str, Container], folder: Path, names: list[str]) -> Iterator[dict[str, Running]]:
    """These, started together; killed with the block if they are still there."""
    with ExitStack() as ending:
        started = {}
        for name in names:
            started[name] = containers[name].start(folder)
            ending.callback(started[name].process.end, 9, 10)
        yield started


def order(run_id: str) -> bytes:
    """A start of an order that is never reviewed, declined or wrapped, in plain JSON."""
    made = subprocess.run(
        ["python3", "incoming.py", "1"], cwd=ORDERS, capture_output=True, text=True, check=True
    ).stdout
    start = json.loads(made.partition(":")[2])
    start["input"]["items"] = start["input"]["items"][:1]
    item = start["input"]["items"][0] | {"quantity": 1, "price": "7.50"}
    start["input"] |= {"items": [item], "total": "7.50", "gift_note": None, "id": run_id}
    return json.dumps(start | {"run_id": run_id}).encode()


def started(bootstrap: str, namespace: str) -> str:
    """Put an order on the topic as any service could, with no library of ours."""
    run_id = f"order-{random.randrange(10**6)}"
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(f"ductor.{namespace}.run-events", order(run_id), key=run_id)
    assert producer.flush(20) == 0
    return run_id


def through(container: Container, namespace: str, run_id: str) -> bool:
    """Whether the run has completed, as the commands tell that are in the image too."""
    command = ["ductor-stream", "runs", "show", run_id, "--namespace", namespace, "--json"]
    done = Container("show", command, container.environment, container.folder).finished()
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["status"] == "completed", run
    return True


def walk(
    containers: dict[str, Container],
    first: list[str],
    folder: Path,
    bootstrap: str,
    namespace: str,
    reader: Container | None = None,
) -> None:
    """Jobs, then processes until they are ready, then an order, then an end in good order.

    ``reader`` may look at runs; a coordinator whose role owns the tables may, too.
    """
    for name in first:
        for _ in range(2):  # a job may be run again: at an upgrade it is
            done = containers[name].finished()
            assert done.returncode == 0, f"{name}: {done.stderr}"
    worker = next(name for name in containers if name.startswith("worker"))
    with running(containers, folder, ["coordinator", worker]) as processes:
        for each in processes.values():
            for probe in each.container.probes:
                until(lambda each=each, probe=probe: each.answers(probe), within_ms=RUNNING_WITHIN_MS, what=probe)
            if each.container.healthcheck:
                until(each.container.healthy, within_ms=RUNNING_WITHIN_MS, what="the health check")
        run_id = started(bootstrap, namespace)
        asked = reader or containers["coordinator"]
        until(lambda: through(asked, namespace, run_id), within_ms=RUNNING_WITHIN_MS, what="the order")
        status, metrics = processes["coordinator"].get("/metrics")
        assert status == 200 and f'ductor_runs_closed_total{{app="{namespace}",outcome="completed"}} 1.0' in metrics
        for name, each in processes.items():
            assert each.terminated() == 0, f"{name} does not end in good order: {each.log.read_text('utf-8')[-2000:]}"


def read_so_far(bootstrap: str, group: str, topic: str) -> int:
    """How many records of the topic the group has committed."""
    asked = [ConsumerGroupTopicPartitions(group)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answer = admin.list_consumer_group_offsets(asked)[group].result(20)
    return sum(max(each.offset, 0) for each in answer.topic_partitions if each.topic == topic)


def test_what_the_chart_renders_runs(kafka: KafkaServer, database_url: str, tmp_path: Path) -> None:
    namespace = fresh_name("chart")
    values: dict[str, Any] = {
        **SMALLEST,
        "namespace": namespace,
        "workers": {"some": {"queues": ["default", "payments", "warehouse"], "keda": {"enabled": True}}},
        "topics": {"partitions": 3},
    }
    objects = rendered(values, tmp_path)
    found = of_pods(objects, {"postgres": {"url": database_url}})
    hosts = {"kafka:9092": kafka.bootstrap}
    here = {name: each.on_this_machine(tmp_path, hosts, ORDERS) for name, each in found.items()}
    assert (
        named(objects, "Deployment", "-coordinator")["spec"]["template"]["spec"]["containers"][0]["workingDir"]
        == "/app"
    )
    walk(here, ["migrate", "topics"], tmp_path, kafka.bootstrap, namespace)
    # What KEDA would look at is there, and was moved on by the workers.
    triggers = named(objects, "ScaledObject", "-worker-some")["spec"]["triggers"]
    for trigger in (each["metadata"] for each in triggers):
        assert read_so_far(kafka.bootstrap, trigger["consumerGroup"], trigger["topic"]) > 0, trigger


def test_every_job_of_the_chart_runs_with_the_role_that_is_meant_for_it(
    kafka: KafkaServer, database_url: str, tmp_path: Path
) -> None:
    """Pods with names of their own; rights after each migration; the purge of every night."""
    namespace = fresh_name("jobs")
    role = {kind: fresh_name(kind).replace("-", "_") for kind in ("coordinator", "reader", "purger")}
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name in role.values():
            connection.execute(f"create role {name} login password 'secret'".encode())
    as_role = {kind: re.sub(r"//[^@]*@", f"//{name}:secret@", database_url) for kind, name in role.items()}
    values: dict[str, Any] = {
        **SMALLEST,
        "namespace": namespace,
        "coordinator": {
            "stableNames": True,
            "secrets": {"DUCTOR_DATABASE_URL": {"secret": "coordinator", "key": "url"}},
        },
        "workers": {"some": {"queues": ["default", "payments", "warehouse"], "stableNames": True}},
        "topics": {"partitions": 3},
        "migrate": {
            "post": True,
            "grants": role,
            "secrets": {"DUCTOR_DATABASE_URL": {"secret": "owner", "key": "url"}},
        },
        "purge": {"enabled": True, "secrets": {"DUCTOR_DATABASE_URL": {"secret": "purger", "key": "url"}}},
    }
    secrets = {"owner": {"url": database_url}, **{kind: {"url": url} for kind, url in as_role.items()}}
    found = of_pods(rendered(values, tmp_path), secrets) | {
        name: each
        for name, each in of_pods(rendered(values, tmp_path, "--is-upgrade"), secrets).items()
        if "post" in name
    }
    hosts = {"kafka:9092": kafka.bootstrap}
    here = {name: each.on_this_machine(tmp_path, hosts, ORDERS) for name, each in found.items()}
    coordinator = here["coordinator"]
    reader = replace(coordinator, environment={"DUCTOR_DATABASE_URL": as_role["reader"]})
    walk(here, ["migrate", "migrate-grants", "topics"], tmp_path, kafka.bootstrap, namespace, reader)
    for name in ("migrate-post-migrate", "migrate-post-grants", "purge"):
        done = here[name].finished()
        assert done.returncode == 0, f"{name}: {done.stderr}"
    assert json.loads(here["purge"].finished().stdout)["runs"] == 0, "the order ended just now"
    denied = replace(here["purge"], environment=coordinator.environment).finished()
    assert denied.returncode != 0 and "grants" in denied.stderr, "it has rights that nobody printed"


def test_what_the_compose_file_describes_runs(kafka: KafkaServer, database_url: str, tmp_path: Path) -> None:
    namespace = fresh_name("compose")
    services = composed({"DUCTOR_NAMESPACE": namespace})
    found = of_services(services)
    assert found.keys() == {"migrate", "topics", "coordinator", "worker"}
    hosts = {"kafka:19092": kafka.bootstrap, "postgresql://ductor:ductor@postgres:5432/ductor": database_url}
    here = {name: each.on_this_machine(tmp_path, hosts, ORDERS) for name, each in found.items()}
    assert all(each.healthcheck for name, each in here.items() if name in ("coordinator", "worker"))
    walk(here, ["migrate", "topics"], tmp_path, kafka.bootstrap, namespace)


@pytest.mark.parametrize("name", ["coordinator", "worker"])
def test_the_compose_file_waits_for_what_comes_before(name: str) -> None:
    services = composed()
    assert {job: how["condition"] for job, how in services[name]["depends_on"].items()} == {
        "migrate": "service_completed_successfully",
        "topics": "service_completed_successfully",
    }
    assert services[name]["stop_grace_period"] == "35s"
