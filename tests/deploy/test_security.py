"""TLS and SASL to Kafka, TLS to Postgres, and processes that are allowed what `acls` and `grants` print and no more."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
from confluent_kafka import Producer
from deploy.secured import PASSWORD, Secured, secured
from pages import blocks
from support import free_port, until

from ductor_stream.config import load
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch
from ductor_stream.kafka.options import client_options

APPS = Path(__file__).parent / "apps"
APP = "guarded:app"
PAGE = "docs/security.md"
WITHIN_MS = 120_000
SECRETS = (PASSWORD, base64.b64encode(b'{"alg"').decode(), "PRIVATE KEY")
"""All tokens begin like the second, those that the driver makes too."""

ROLES = {"owner": "shop_owner", "coordinator": "shop_coordinator", "reader": "shop_reader", "purger": "shop_purger"}


def ductor(environment: Mapping[str, str], *arguments: str) -> Any:
    """Run a command that must succeed, and give what it says."""
    return json.loads(said(environment, *arguments, "--json"))


def said(environment: Mapping[str, str], *arguments: str) -> str:
    """The same as people see it."""
    done = tried(environment, *arguments)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def tried(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, however it ends."""
    return python(environment, "-m", "ductor_stream.cli.main", *arguments)


def python(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of Python, however it ends; it says nothing that is secret."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=APPS, env=_inherited() | environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert secrets_in(done.stdout + done.stderr) == []
    return done


def secrets_in(text: str) -> list[str]:
    """What may be in no log at any level: passwords (the client's secret is one), tokens, keys. The lines with one."""
    return [line for line in text.splitlines() if any(secret in line for secret in SECRETS)]


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Both servers, with users, ACLs, roles, tables, rights and topics made as docs/security.md says."""
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.paste(said({}, "acls", APP, "--principal", "User:{process}"))
        [roles] = blocks(PAGE, "sql")
        [tables] = [block for block in blocks(PAGE) if "migrate" in block]
        with psycopg.connect(made.superuser, autocommit=True) as connection:
            connection.execute(f"{roles} create role {ROLES['purger']} login".encode())
            for role in ROLES.values():
                connection.execute(f"alter role {role} password '{PASSWORD}'".encode())
        made.paste(tables)
        ductor(made.postgres(ROLES["owner"]), "grants", "--apply", "--purger", ROLES["purger"])
        # Rights take effect in the broker a moment after it has answered.
        until(lambda: ductor(made.scram("topics"), "topics", "create", APP), within_ms=WITHIN_MS)
        yield made


class Process:
    """A process of the product."""

    def __init__(self, role: str, environment: Mapping[str, str], folder: Path) -> None:
        self.role, self.log, self.port = role, folder / f"{role}.log", free_port()
        self._url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "ductor_stream.cli.main", role, APP, "--health-port", str(self.port)]
        talkative = {"DUCTOR_LOG_LEVEL": "debug"}  # a secret in a log is one at any level
        given = _inherited() | talkative | environment
        spec = ServerSpec(role, command, APPS, self.log, signal.SIGTERM, environment=given)
        self.process: ServerProcess = launch(spec)

    def ready(self) -> bool:
        """Whether it says so itself."""
        assert self.process.alive(), self.log.read_text("utf-8")
        try:
            urllib.request.urlopen(f"{self._url}/readyz", timeout=5).close()
        except OSError as error:
            raise AssertionError(f"{error}: {self.log.read_text('utf-8')[-1000:]}") from error
        return True

    def reasons(self) -> list[str]:
        """Why it is not ready."""
        try:
            urllib.request.urlopen(f"{self._url}/readyz", timeout=5).close()
        except urllib.error.HTTPError as error:
            told: list[str] = json.loads(error.read())["reasons"]
            return told
        return []

    def metrics(self) -> str:
        """What it counts."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def pause(self) -> None:
        """SIGSTOP: its partitions go elsewhere."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> int | None:
        """SIGTERM; the exit status. It has logged nothing that is secret."""
        self.process.end(signal.SIGTERM, 60)
        assert secrets_in(self.log.read_text("utf-8")) == []
        return self.process.exit_status


@pytest.fixture(scope="module")
def fleet(servers: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    """A coordinator that is known by SCRAM, and a worker that is known by its certificate."""
    folder = tmp_path_factory.mktemp("logs")
    coordinator = servers.scram("coordinator") | servers.postgres(ROLES["coordinator"])
    started = {
        "coordinator": Process("coordinator", coordinator, folder),
        "worker": Process("worker", servers.mutual("worker"), folder),
    }
    try:
        for each in started.values():
            until(each.ready, within_ms=WITHIN_MS, what=f"the {each.role}")
        yield started
    finally:
        for each in started.values():
            each.end()


def shown(servers: Secured, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = ductor(servers.postgres(ROLES["reader"]), "runs", "show", run_id, "--namespace", "guarded")
    return found


def status(servers: Secured, run_id: str, wanted: str) -> bool:
    found = shown(servers, run_id)
    assert found["status"] == wanted, found
    return True


def test_a_run_completes_with_the_rights_that_are_printed(servers: Secured, fleet: dict[str, Process]) -> None:
    """A start by PLAIN, a signal by a token, results read by a client that has no database."""
    [printed] = ductor({}, "acls", APP, "--process", "client", "--principal", "User:by-token")
    servers.allow(printed["principal"], printed["acls"])
    by_token, named = servers.oauth("by-token"), ("--namespace", "guarded")
    until(lambda: ductor(by_token, "signal", "order-1", "paid", "--json-payload", "5", *named), within_ms=WITHIN_MS)
    program = (
        "import guarded, ductor_stream as d\n"
        "with d.SyncClient(guarded.app) as client:\n"
        "    print(client.start(guarded.order, False, run_id='order-1').result(timeout=60))\n"
    )
    done = python(servers.plain(), "-c", program)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    assert "not authorized" not in done.stderr.lower() and "authorization" not in done.stderr.lower()


def test_a_worker_and_a_client_whose_tokens_a_function_brings(
    servers: Secured, fleet: dict[str, Process], tmp_path: Path
) -> None:
    for process in ("worker", "client"):
        [printed] = ductor({}, "acls", APP, "--process", process, "--principal", f"User:token-{process}")
        servers.allow(printed["principal"], printed["acls"])
    told = servers.folder / "tokens"
    worker = Process("worker", servers.token("token-worker"), tmp_path)
    try:
        until(worker.ready, within_ms=WITHIN_MS, what="the worker")
        client, named = servers.token("token-client"), ("--namespace", "guarded")
        until(lambda: ductor(client, "start", "order", "by-tokens", "--input", "false", *named), within_ms=WITHIN_MS)
        ductor(client, "signal", "by-tokens", "paid", "--json-payload", "7", *named)
        until(lambda: status(servers, "by-tokens", "completed"), within_ms=WITHIN_MS)
        # One for each of a worker's clients, and more of them when the first have expired.
        before = told.read_text("utf-8").count("token-worker")
        until(lambda: told.read_text("utf-8").count("token-worker") > before, within_ms=WITHIN_MS, what="the next")
        until(worker.ready, within_ms=WITHIN_MS, what="the worker, by its next token")
    finally:
        worker.end()
    assert "authoriz" not in worker.log.read_text("utf-8").lower()


def test_serve_needs_no_more_than_is_printed(servers: Secured, fleet: dict[str, Process], tmp_path: Path) -> None:
    """Coordinator and worker in one process, under a name of its own."""
    [printed] = ductor({}, "acls", APP, "--process", "serve", "--principal", "User:token-serve")
    servers.allow(printed["principal"], printed["acls"])
    serve = Process("serve", servers.token("token-serve") | servers.postgres(ROLES["coordinator"]), tmp_path)
    try:
        until(serve.ready, within_ms=WITHIN_MS, what="serve")
        for each in fleet.values():
            each.pause()
        named = ("--namespace", "guarded")
        [client] = ductor({}, "acls", APP, "--process", "client", "--principal", "User:by-token")
        servers.allow(client["principal"], client["acls"])
        by_token = servers.oauth("by-token")
        until(lambda: ductor(by_token, "start", "order", "served", "--input", "false", *named), within_ms=WITHIN_MS)
        ductor(by_token, "signal", "served", "paid", "--json-payload", "9", *named)
        until(lambda: status(servers, "served", "completed"), within_ms=WITHIN_MS)
    finally:
        for each in fleet.values():
            each.go_on()
        assert serve.end() == 0
    assert "authoriz" not in serve.log.read_text("utf-8").lower()


def test_a_worker_and_a_client_whose_tokens_an_identity_server_gives(
    servers: Secured, fleet: dict[str, Process], tmp_path: Path
) -> None:
    """The driver asks by OIDC itself, as the table of docs/security.md has it."""
    for process in ("worker", "client"):
        [printed] = ductor({}, "acls", APP, "--process", process, "--principal", f"User:oidc-{process}")
        servers.allow(printed["principal"], printed["acls"])
    worker = Process("worker", servers.oidc("oidc-worker"), tmp_path)
    try:
        until(worker.ready, within_ms=WITHIN_MS, what="the worker")
        client, named = servers.oidc("oidc-client"), ("--namespace", "guarded")
        until(lambda: ductor(client, "start", "order", "by-oidc", "--input", "false", *named), within_ms=WITHIN_MS)
        ductor(client, "signal", "by-oidc", "paid", "--json-payload", "8", *named)
        until(lambda: status(servers, "by-oidc", "completed"), within_ms=WITHIN_MS)
        asked = len(servers.identities.asked)
        until(lambda: len(servers.identities.asked) > asked, within_ms=WITHIN_MS, what="the next token")
        until(worker.ready, within_ms=WITHIN_MS, what="the worker, by its next token")
    finally:
        worker.end()
    told = worker.log.read_text("utf-8")
    assert "authoriz" not in told.lower()
    logins = {each.headers["Authorization"].removeprefix("Basic ") for each in servers.identities.asked}
    assert len(logins) == 2 and not [login for login in logins if login in told]


def test_a_function_that_brings_no_token_is_told(servers: Secured) -> None:
    done = tried(servers.token("broken"), "start", "order", "x", "--namespace", "guarded")
    assert (
        done.returncode == 5 and "no token for Kafka: tokens:kafka_token raised RuntimeError: the token" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_who_may_purge_needs_no_more_than_is_printed(servers: Secured) -> None:
    environment = servers.scram("purge", 256) | servers.postgres(ROLES["purger"])
    named = ("--namespace", "guarded")
    until(lambda: ductor(environment, "purge", "--closed-before", "30d", *named)["runs"] == 0, within_ms=WITHIN_MS)


ORDER = ("order", "nobody", "--namespace", "guarded")


@pytest.mark.parametrize(
    ("who", "role", "command", "says"),
    [
        ("purge", "reader", ("start", *ORDER, "--input", "false"), "Kafka does not let us write to"),
        ("purge", "reader", ("signal", "nobody", "paid", *ORDER[2:]), "Kafka does not let us write to"),
        ("nobody", "reader", ("start", *ORDER, "--input", "false"), "run-events: Broker: Topic authorization failed"),
        ("worker", "coordinator", ("coordinator", APP), "topic ductor.guarded.run-events: Topic authorization failed"),
        ("client", "coordinator", ("dead-letters", "list", *ORDER[2:]), "Topic authorization failed"),
        ("client", "coordinator", ("topics", "check", APP), "tasks.stock: Topic authorization failed"),
        ("client", "coordinator", ("start", *ORDER, "--input", "false"), "permission denied for"),
    ],
)
def test_a_right_that_is_missing_is_told_in_a_line_with_the_remedy(
    servers: Secured, who: str, role: str, command: tuple[str, ...], says: str
) -> None:
    done = tried(servers.scram(who) | servers.postgres(ROLES[role]), *command)
    told = done.stderr + done.stdout
    assert done.returncode in (4, 5) and says in told, told
    assert "`ductor-stream acls" in told or "`ductor-stream grants` prints the rights" in told
    assert "Traceback" not in told and "topics create" not in told


def test_a_worker_that_may_not_read_its_tasks_says_what_to_do(servers: Secured, tmp_path: Path) -> None:
    worker = Process("worker", servers.scram("client"), tmp_path)
    try:
        lines = ("tasks.stock: Broker: Topic authorization failed", "(`ductor-stream acls` prints the rights)")
        until(lambda: all(line in worker.log.read_text("utf-8") for line in lines), within_ms=WITHIN_MS)
    finally:
        worker.end()


def test_a_right_that_is_taken_from_a_running_coordinator_is_named(servers: Secured, tmp_path: Path) -> None:
    """It is not said that the topic is missing, which would send people to create what is there."""
    apart = {"DUCTOR_NAMESPACE": "watched"}
    ductor({"DUCTOR_KAFKA_BOOTSTRAP": f"127.0.0.1:{servers.ports['admin']}"} | apart, "topics", "create", APP)
    [printed] = ductor(apart, "acls", APP, "--process", "coordinator", "--principal", "User:watched")
    servers.allow(printed["principal"], printed["acls"])
    # To read and to write it: each of them implies DESCRIBE.
    taken = [acl for acl in printed["acls"] if acl["name"] == "ductor.watched.wakeups"]
    environment = servers.scram("watched") | servers.postgres(ROLES["coordinator"]) | apart
    coordinator = Process("coordinator", environment, tmp_path)
    named = "topic ductor.watched.wakeups: Topic authorization failed, DESCRIBE on it is not granted"
    try:
        until(coordinator.ready, within_ms=WITHIN_MS, what="the coordinator")
        servers.forbid(printed["principal"], taken)
        until(lambda: any(named in why for why in coordinator.reasons()), within_ms=WITHIN_MS, what=named)
        assert not [why for why in coordinator.reasons() if "is missing" in why]
        until(lambda: named in coordinator.log.read_text("utf-8"), within_ms=WITHIN_MS, what="the same in the log")
        servers.allow(printed["principal"], taken)
        until(coordinator.ready, within_ms=WITHIN_MS, what="the coordinator, that may again")
    finally:
        coordinator.end()


def test_doctor_names_the_rights_that_are_missing(servers: Secured) -> None:
    environment = servers.mutual("worker") | servers.postgres(ROLES["reader"])

    def told() -> dict[str, str]:
        done = tried(environment, "doctor", APP, "--json")
        assert done.returncode == 1, done.stdout  # 5 while the broker has not answered for all of it yet
        return {each["check"]: each["text"] for each in json.loads(done.stdout)["checks"] if each["level"] == "wrong"}

    wrong = until(told, within_ms=WITHIN_MS, what="a doctor that was answered")
    assert "DESCRIBE on ductor.guarded.run-events" in wrong["kafka-rights"]
    assert "insert on eec_outbox" in wrong["postgres-rights"]


def test_an_attempt_is_stopped_and_a_letter_written_and_read(servers: Secured, fleet: dict[str, Process]) -> None:
    client, named = servers.plain(), ("--namespace", "guarded")
    ductor(client, "start", "order", "order-2", "--input", "true", *named)

    # By the worker's word: an attempt that is cancelled before it has begun needs no stop.
    until(lambda: _busy(fleet["worker"]) >= 1, within_ms=WITHIN_MS, what="an attempt under way")
    ductor(client, "cancel", "order-2", *named)
    until(lambda: status(servers, "order-2", "cancelled"), within_ms=WITHIN_MS)
    until(lambda: _stops(fleet["worker"]) >= 1, within_ms=WITHIN_MS, what="the stop")
    _producer(client).flush(20)
    letters = until(lambda: ductor(servers.scram("dead-letters"), "dead-letters", "list", *named), within_ms=WITHIN_MS)
    assert [letter["reason"] for letter in letters] == ["undecodable"]
    again = ductor(servers.scram("dead-letters"), "dead-letters", "replay", "--all", *named)
    assert len(again["sent"]) == 1


def _busy(worker: Process) -> float:
    return sum(map(float, re.findall(r"^ductor_worker_busy\{.*\} (\S+)$", worker.metrics(), re.MULTILINE)))


def _stops(worker: Process) -> float:
    return float(re.findall(r"^ductor_worker_stops_total\{.*\} (\S+)$", worker.metrics(), re.MULTILINE)[0])


def _producer(environment: Mapping[str, str], topic: str = "ductor.guarded.run-events") -> Producer:
    """One that has put something on a topic that is no message."""
    settings = load(dict(environment))
    made = Producer(client_options("producer", settings.need_kafka(), settings.kafka))
    made.produce(topic, b"garbage", key=b"order-3")
    return made


def test_nobody_was_refused_anything_it_needs(servers: Secured, fleet: dict[str, Process]) -> None:
    """Run last or first, it holds: no process has met a closed door."""
    for each in fleet.values():
        told = each.log.read_text("utf-8").lower()
        assert "authoriz" not in told and "permission denied" not in told, told[-3000:]
        assert secrets_in(each.log.read_text("utf-8")) == []
    assert not re.search(r"^ductor_undeliverable_total", fleet["coordinator"].metrics(), re.MULTILINE)


def test_postgres_is_reached_by_tls_alone(servers: Secured, fleet: dict[str, Process]) -> None:
    assert servers.front.refused == 0
    url = f"postgresql://{ROLES['coordinator']}:{PASSWORD}@127.0.0.1:{servers.front.port}/postgres?sslmode=disable"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url).close()
    assert servers.front.refused == 1
    servers.front.refused = 0
    # A coordinator's session is found by its name, and is that of its own role.
    with psycopg.connect(servers.superuser) as connection:
        roles = connection.execute(
            "select distinct usename from pg_stat_activity where application_name like 'ductor-stream owner%'"
        ).fetchall()
    assert roles == [(ROLES["coordinator"],)]


@pytest.mark.parametrize(
    ("who", "topic"),
    [
        ("worker", "run-events"),
        ("worker", "run-lifecycle"),
        ("coordinator", "attempt-results"),
        ("client", "tasks.payments"),
    ],
)
def test_a_process_can_write_nothing_else(who: str, topic: str, servers: Secured) -> None:
    known = {"worker": servers.mutual("worker"), "client": servers.plain()}
    environment = known.get(who) or servers.scram(who)
    settings = load(environment)
    producer = Producer(client_options("producer", settings.need_kafka(), settings.kafka))
    heard: list[Any] = []
    producer.produce(f"ductor.guarded.{topic}", b"{}", key=b"x", on_delivery=lambda error, _: heard.append(error))
    producer.flush(30)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(heard[0]) or "Authorization failed" in heard[0].str()


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("reader", "update eec_workflow_run set status = 'completed'"),
        ("reader", "select * from eec_outbox"),
        ("coordinator", "delete from eec_workflow_run"),
        ("purger", "update eec_workflow_run set status = 'failed'"),
        ("purger", "delete from eec_partition"),
        ("coordinator", "update eec_workflow_transition set records = ''"),
        ("coordinator", "update eec_workflow_step_attempt set outcome = 'completed'"),
        ("coordinator", "create table eec_mine (n int)"),
        ("coordinator", "drop table eec_inbox"),
    ],
)
def test_a_role_can_do_nothing_else(role: str, statement: str, servers: Secured) -> None:
    url = Path(servers.postgres(ROLES[role])["DUCTOR_DATABASE_URL_FILE"]).read_text("utf-8").strip()
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())


def test_a_wrong_certificate_is_refused_in_one_line(servers: Secured, tmp_path: Path) -> None:
    """A server whose certificate nobody we trust has signed is not talked to."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    environment = servers.postgres(ROLES["reader"]) | {"DUCTOR_DATABASE_SSLROOTCERT": str(other)}
    done = tried(environment, "runs", "list", "--namespace", "guarded")
    assert done.returncode == 5 and "certificate verify failed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2
