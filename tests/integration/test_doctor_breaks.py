"""Real servers, broken one thing at a time: ``doctor`` names it, and nothing was wrong before."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka import admin as driver
from confluent_kafka.cimpl import NewPartitions
from msgspec import structs
from servers import KafkaServer
from support import free_port, fresh_name, until

from ductor_stream.cli.doctor import Subject, examine
from ductor_stream.cli.doctor_kafka import Verdict
from ductor_stream.config import Settings
from ductor_stream.dev.broker import new_cluster_id
from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.ports import port_is_free
from ductor_stream.dev.postgres import EmbeddedPostgres
from ductor_stream.kafka import inspection as kafka_inspection
from ductor_stream.kafka.options import Admin
from ductor_stream.kafka.topics import AdminConfig, create_topics, delete_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.store import inspection as postgres_inspection
from ductor_stream.store.grants import apply_grants
from ductor_stream.store.migrate import migrate
from ductor_stream.store.postgres import PostgresStore

QUEUES = ("default",)
_driver = cast(Any, driver)


class System:
    """A namespace with its topics and tables, and the hands that break it."""

    def __init__(self, bootstrap: str, database: str, replicas: int = -1) -> None:
        self.topics = Topics(fresh_name("sick"))
        self.settings = Settings(kafka_bootstrap=bootstrap, database_url=database)
        self.config = AdminConfig(bootstrap=bootstrap, topics=self.topics)
        self.admin = Admin({"bootstrap.servers": bootstrap})
        self.database = database
        create_topics(self.config, plan(self.topics, QUEUES, partitions=3, replicas=replicas))
        migrate(database)

    def told(self, check: str, write: bool = False) -> list[Verdict]:
        """What ``doctor`` says under this heading."""
        subject = Subject(self.settings, self.topics, QUEUES)
        return [each for each in examine(subject, write) if each.check == check]

    def until_told(self, check: str, level: str, text: str) -> Verdict:
        """Wait until it says that; a broker takes a moment to know what was done to it."""

        def said() -> Verdict:
            found = self.told(check)
            fitting = [each for each in found if each.level == level and text in each.text]
            assert fitting, found
            return fitting[0]

        return until(said, within_ms=30_000)

    def alter(self, kind: str, name: str, **config: str) -> None:
        """Set options of a topic or a group."""
        change = _driver.AlterConfigOpType.SET
        entries = [_driver.ConfigEntry(k.replace("_", "."), v, incremental_operation=change) for k, v in config.items()]
        resource = _driver.ConfigResource(getattr(_driver.ResourceType, kind), name, incremental_configs=entries)
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result(10)

    def run(self, statement: str) -> None:
        """Do something to the database."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture
def system(kafka: KafkaServer, database_url: str) -> Iterator[System]:
    made = System(kafka.bootstrap, database_url)
    yield made
    delete_topics(made.config, [each.name for each in plan(made.topics, QUEUES)])


def missing_topic(system: System) -> None:
    delete_topics(system.config, [system.topics.wakeups])


def uneven_topics(system: System) -> None:
    for done in system.admin.create_partitions([NewPartitions(system.topics.run_events, 5)]).values():
        done.result(10)


def compacted(system: System) -> None:
    system.alter("TOPIC", system.topics.run_events, cleanup_policy="compact")


def kept_for_an_hour(system: System) -> None:
    system.alter("TOPIC", system.topics.attempt_results, retention_ms="3600000")


def small_records(system: System) -> None:
    system.alter("TOPIC", system.topics.run_events, max_message_bytes="1000")


def times_of_hosts(system: System) -> None:
    system.alter("TOPIC", system.topics.run_events, message_timestamp_type="CreateTime")


def slow_group(system: System) -> None:
    system.alter("GROUP", system.topics.coordinator_group, consumer_session_timeout_ms="45000")


def other_partitioner(system: System) -> None:
    producer = Producer({"bootstrap.servers": system.config.bootstrap, "partitioner": "consistent_random"})
    for number in range(40):
        producer.produce(system.topics.run_events, b"{}", f"run-{number}")
    assert producer.flush(10) == 0


def no_tables(system: System) -> None:
    system.run("drop table eec_schema")


def other_cluster(system: System) -> None:
    store = PostgresStore(system.database)
    store.namespace(system.topics.namespace, "another-cluster", 3)
    store.close()


def later_release(system: System) -> None:
    system.run("insert into eec_schema (version, phase, name) values (9999, 'post', 'later')")


BREAKS: list[tuple[Callable[[System], None], str, str, str]] = [
    (missing_topic, "topics", "wrong", "wakeups is missing"),
    (uneven_topics, "topics", "wrong", "partitions"),
    (compacted, "retention", "wrong", "is compacted"),
    (kept_for_an_hour, "retention", "warning", "keeps records for 1 h"),
    (small_records, "retention", "warning", "1000 bytes at most"),
    (times_of_hosts, "retention", "warning", "whose clock is ahead are refused"),
    (slow_group, "session-timeout", "warning", "unserved for 45 s"),
    (other_partitioner, "partitioner", "note", "newest records"),
    (no_tables, "schema", "wrong", "not applied"),
    (other_cluster, "namespace", "wrong", "made on cluster another-cluster"),
    (later_release, "schema", "wrong", "newer than this release"),
]


@pytest.mark.parametrize(("breaks", "check", "level", "text"), BREAKS, ids=lambda each: getattr(each, "__name__", None))
def test_what_is_broken_is_named(
    system: System, breaks: Callable[[System], None], check: str, level: str, text: str
) -> None:
    assert not [each for each in system.told(check) if (each.level, text in each.text) == (level, True)]
    breaks(system)
    assert system.until_told(check, level, text).remedy


def test_brokers_without_the_new_protocol_are_named(system: System, tmp_path: Path) -> None:
    wanted = Settings(kafka_bootstrap=system.config.bootstrap, database_url=system.database, kafka_protocol="consumer")
    system.settings = wanted
    system.until_told("group-protocol", "ok", "consumer (KIP-848)")
    old = {"group.coordinator.rebalance.protocols": "classic", "group.min.session.timeout.ms": "10000"}
    kafka = EmbeddedKafka(tmp_path / "classic", extra=old)
    kafka.start()
    try:
        broken = System(kafka.bootstrap, system.database)
        broken.until_told("group-protocol", "ok", "classic: the brokers do not offer the new protocol")
        broken.until_told("session-timeout", "wrong", "refuse session time-outs below 10000 ms")
        broken.settings = structs.replace(wanted, kafka_bootstrap=kafka.bootstrap)
        broken.until_told("group-protocol", "wrong", "the brokers do not offer it")
    finally:
        kafka.stop()


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """One cluster; the first is its controller, too, so that the second may be killed."""
    ports, quorum, cluster = [free_port(), free_port()], free_port(), new_cluster_id()
    first = {"listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{quorum}"}
    second = {"listeners": f"PLAINTEXT://127.0.0.1:{ports[1]}", "process.roles": "broker", "node.id": "2"}
    voters = {"controller.quorum.voters": f"1@127.0.0.1:{quorum}"}
    one, two = (
        EmbeddedKafka(folder / f"kafka-{n}", port=port, extra=own | voters, cluster_id=cluster)
        for n, port, own in zip((1, 2), ports, (first, second), strict=True)
    )
    with ExitStack() as ending:
        for each in (one, two):
            each.start()
            ending.callback(each.stop)
        yield one, two


def test_topics_that_do_not_outlive_a_broker_are_named(tmp_path: Path, database_url: str) -> None:
    with two_brokers(tmp_path) as (one, two):
        both = f"{one.bootstrap},{two.bootstrap}"
        admin = Admin({"bootstrap.servers": both})
        until(lambda: len(admin.list_topics(timeout=5).brokers) == 2, within_ms=30_000, what="two brokers")
        alone = System(both, database_url, replicas=1)
        alone.until_told("replication", "warning", "one replica: a lost broker takes records along")
        twice = System(both, database_url, replicas=2)
        twice.until_told("replication", "warning", "min.insync.replicas=1: an acknowledged record")
        for planned in plan(twice.topics, QUEUES):
            twice.alter("TOPIC", planned.name, min_insync_replicas="2")
        twice.until_told("replication", "warning", "min.insync.replicas=2 of 2 replicas: one broker away stops")
        two.kill()
        twice.until_told("replication", "wrong", "records are refused")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_what_it_acknowledged_is_named(kafka: KafkaServer, tmp_path: Path, setting: str) -> None:
    server = EmbeddedPostgres(tmp_path / "loose", settings={setting: "off"})
    server.start()
    try:
        loose = System(kafka.bootstrap, server.url)
        wrong = [each for each in loose.told("postgres") if each.level != "ok"]
        assert [each.level for each in wrong] == ["wrong"]
        assert "fsync or full_page_writes is off: a crash of the server loses or corrupts runs" in wrong[0].text
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"alter system set {setting} = on".encode())
            connection.execute("select pg_reload_conf()")
        until(lambda: [each.level for each in loose.told("postgres")] == ["ok"], what="what is mended to be sound")
    finally:
        server.stop()


def test_a_replica_that_is_not_synchronous_is_named(system: System) -> None:
    """A session of a replica is all that Postgres tells of one."""
    assert system.told("postgres-replication")[0].level == "ok"
    url = urlsplit(system.database)
    replica = psycopg.connect(urlunsplit(url._replace(query="replication=true")), autocommit=True)
    try:
        system.until_told("postgres-replication", "warning", "none synchronous")
    finally:
        replica.close()


def test_a_role_without_its_rights_is_named(system: System) -> None:
    role = fresh_name("owner").replace("-", "_")
    system.run(f"create role {role} login password 'x'")
    apply_grants(system.database, {"coordinator": role})
    url = urlsplit(system.database)
    own = urlunsplit(url._replace(netloc=f"{role}:x@{url.netloc.rpartition('@')[2]}"))
    system.settings = Settings(kafka_bootstrap=system.config.bootstrap, database_url=own)
    try:
        assert system.told("postgres-rights")[0].level == "ok"
        system.run(f"revoke insert on eec_outbox from {role}")
        assert "insert on eec_outbox" in system.until_told("postgres-rights", "wrong", "may not").text
    finally:
        system.run(f"drop owned by {role}")
        system.run(f"drop role {role}")


@contextmanager
def pgbouncer(database: str, mode: str, folder: Path) -> Iterator[str]:
    """A real pooler in front of the database; its URL."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        pytest.fail("pgbouncer is not installed: see CONTRIBUTING.md", pytrace=False)
    url, port = urlsplit(database), free_port()
    options = [f"listen_addr=127.0.0.1\nlisten_port={port}", "auth_type=any", f"pool_mode={mode}", "unix_socket_dir="]
    server = f"* = host={url.hostname} port={url.port} user={url.username} password={url.password}"
    ini = folder / "pgbouncer.ini"
    ini.write_text("\n".join(["[databases]", server, "[pgbouncer]", *options, ""]), "utf-8")
    command: list[str | Path] = [program, "/dev/stdin"]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]  # it refuses to be root
    with ini.open("rb") as config, subprocess.Popen(command, stdin=config, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: not port_is_free(port), within_ms=20_000, what="the pooler's port")
            yield urlunsplit(url._replace(netloc=f"{url.username}@127.0.0.1:{port}"))
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("mode", "level", "text"),
    [("session", "note", "a pooler in session mode"), ("transaction", "wrong", "a pooler in transaction mode")],
)
def test_a_pooler_is_named_with_its_mode(system: System, tmp_path: Path, mode: str, level: str, text: str) -> None:
    assert system.told("pooler")[0].level == "ok"
    with pgbouncer(system.database, mode, tmp_path) as url:
        system.settings = Settings(kafka_bootstrap=system.config.bootstrap, database_url=url)
        system.until_told("pooler", level, text)


@pytest.mark.parametrize(("hours", "way"), [(-1, "behind"), (1, "ahead of")])
def test_a_clock_that_is_off_is_named(system: System, monkeypatch: pytest.MonkeyPatch, hours: int, way: str) -> None:
    """This machine's, against Postgres's and Kafka's."""

    def told(level: str) -> list[str]:
        found = system.told("clock", write=True)
        assert [each.level for each in found] == [level, level], found
        return [each.text for each in found]

    until(lambda: told("ok"), within_ms=30_000)
    wrong = SimpleNamespace(time=lambda: time.time() - 3600 * hours, monotonic=time.monotonic)
    monkeypatch.setattr(postgres_inspection, "time", wrong)
    monkeypatch.setattr(kafka_inspection, "time", wrong)
    texts = until(lambda: told("warning"), within_ms=30_000)
    assert [name for name in ("Kafka", "Postgres") if any(f"{name}'s clock is 3" in text for text in texts)] == [
        "Kafka",
        "Postgres",
    ]
    assert all(f" {way} this machine's" in text for text in texts)


def test_servers_that_are_away_are_named(tmp_path: Path) -> None:
    settings = Settings(kafka_bootstrap="127.0.0.1:1", database_url="postgresql://nobody@127.0.0.1:1/none")
    found = examine(Subject(settings, Topics("nowhere"), ()))
    assert [(each.check, each.level) for each in found] == [("reach", "wrong"), ("reach", "wrong")]
