"""``ductor-stream doctor``: looks at Kafka, Postgres and an app's place in both, and says what to fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from ductor_stream.app import App
from ductor_stream.cli import doctor_kafka, doctor_postgres
from ductor_stream.cli.connection import connection_options, namespace_of, settings_for
from ductor_stream.cli.doctor_kafka import Verdict
from ductor_stream.cli.failures import FAILED, UNREACHABLE, end, remedy
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer
from ductor_stream.config import Settings
from ductor_stream.errors import LogUnavailable, StoreUnavailable, TopicsNotReady
from ductor_stream.kafka.homes import inspect_homes
from ductor_stream.kafka.inspection import ClockFacts, ClusterFacts, inspect_cluster, measure_clock
from ductor_stream.kafka.topics import AdminConfig, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.inspection import PostgresFacts, inspect_postgres

_ANSWER_S = 8.0
"""For each question to Kafka: people wait for the answer."""
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "wrong": "red"}


class Subject(msgspec.Struct, frozen=True):
    """What is looked at: the topics and queues of a namespace, under these settings."""

    settings: Settings
    topics: Topics
    queues: Sequence[str]

    @property
    def names(self) -> list[str]:
        """Full names of all topics that have to be there."""
        return [each.name for each in plan(self.topics, self.queues)]

    @property
    def groups(self) -> list[str]:
        """Consumer groups of coordinators and workers."""
        return [self.topics.coordinator_group, *map(self.topics.worker_group, self.queues)]


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--write", is_flag=True, help="Make and delete a topic, to see Kafka's clock. Else nothing is written.")
@connection_options
def doctor(app: str | None, write: bool, as_json: bool, **given: Any) -> None:
    """Say what is wrong with Kafka, Postgres, topics, tables and rights, and how to mend it.

    With the app its queues are looked at too; without it, name the --namespace. Exit code 1 when something is wrong
    (warnings and notes do not count), 5 when Kafka or Postgres cannot be reached.
    """
    loaded = load_app(app) if app else None
    subject = _subject(loaded, settings_for(of_app=loaded is not None, **given))
    subject.settings.need_kafka()
    found = examine(subject, write)
    wrong = [each for each in found if each.level == "wrong"]

    def show(_: object) -> None:
        for each in found:
            click.secho(f"{each.level:<8}", fg=_STYLES[each.level], bold=each.level == "wrong", nl=False)
            click.echo(f"{each.check:<21}{each.text}")
            if each.remedy:
                click.echo(f"{'':<29}→ {each.remedy}")

    answer({"ok": not wrong, "checks": found}, as_json, show)
    if any(each.check == "reach" for each in wrong):
        end(UNREACHABLE)
    if wrong:
        end(FAILED)


def _subject(app: App | None, settings: Settings) -> Subject:
    topics = settings.topics(app.namespace if app is not None else namespace_of(settings))
    return Subject(settings, topics, app.queues() if app is not None else ())


def examine(subject: Subject, write: bool = False) -> list[Verdict]:
    """Every check's verdicts. Raises InvalidConfig; what cannot be reached is a verdict."""
    found: list[Verdict] = []
    cluster, postgres = _cluster(subject, found), _postgres(subject, found)
    recorded = postgres.partitions if postgres is not None else None
    if cluster is not None:
        found += _of_kafka(subject, cluster, recorded)
        found += _kafka_clock(subject) if write else ()
    if postgres is not None:
        found += _of_postgres(subject, postgres, cluster)
    return found


def _admin(subject: Subject) -> AdminConfig:
    settings = subject.settings
    return AdminConfig(
        bootstrap=settings.need_kafka(), topics=subject.topics, options=settings.kafka, timeout=_ANSWER_S
    )


def _cluster(subject: Subject, found: list[Verdict]) -> ClusterFacts | None:
    try:
        return inspect_cluster(_admin(subject), subject.names, subject.groups)
    except LogUnavailable as error:
        found.append(Verdict("reach", "wrong", f"{error} ({subject.settings.kafka_bootstrap})", remedy(error)))
        return None


def _postgres(subject: Subject, found: list[Verdict]) -> PostgresFacts | None:
    if not subject.settings.has_database:
        text = "no database is configured: only workers and clients can do without"
        found.append(Verdict("postgres", "note", text, "set DUCTOR_DATABASE_URL"))
        return None
    try:
        return inspect_postgres(subject.settings.need_database(), subject.topics.namespace)
    except StoreUnavailable as error:
        found.append(Verdict("reach", "wrong", str(error), remedy(error)))
        return None


def _of_kafka(subject: Subject, facts: ClusterFacts, recorded: int | None) -> Iterator[Verdict]:
    wanted = subject.settings.kafka_protocol
    yield from doctor_kafka.cluster(facts, subject.settings.need_kafka())
    yield from doctor_kafka.group_protocol(facts, wanted, subject.topics.coordinator_group)
    yield from doctor_kafka.session_timeout(facts, wanted, subject.groups)
    yield from doctor_kafka.co_partitioning(facts, subject.topics, subject.names, recorded)
    yield from doctor_kafka.replication(facts)
    yield from doctor_kafka.retention(facts, subject.topics)
    yield from doctor_kafka.rights(facts, subject.topics, subject.groups)
    yield from _homes(subject, facts, recorded)


def _homes(subject: Subject, facts: ClusterFacts, recorded: int | None) -> Iterator[Verdict]:
    events = subject.topics.run_events
    if events not in facts.topics:
        return
    try:
        found = inspect_homes(_admin(subject), events, recorded or facts.topics[events].partitions)
    except LogUnavailable as error:
        yield Verdict("partitioner", "note", str(error), "allow READ on the topic to whoever runs `doctor`")
        return
    yield from doctor_kafka.homes(found, events)


def _kafka_clock(subject: Subject) -> Iterator[Verdict]:
    try:
        facts = measure_clock(_admin(subject), f"{subject.topics.prefix}{subject.topics.namespace}.doctor")
    except (LogUnavailable, TopicsNotReady) as error:
        yield Verdict("clock", "note", str(error), "leave --write away, or allow CREATE and DELETE of topics")
        return
    yield from doctor_kafka.clock("Kafka", facts)


def _of_postgres(subject: Subject, facts: PostgresFacts, cluster: ClusterFacts | None) -> Iterator[Verdict]:
    counts = (
        [cluster.topics[name].partitions for name in subject.topics.inbound_names if name in cluster.topics]
        if (cluster is not None)
        else []
    )
    cluster_id = cluster.cluster_id if cluster is not None else None
    yield from doctor_postgres.server(facts)
    yield from doctor_postgres.schema(facts)
    yield from doctor_postgres.namespace(facts, subject.topics.namespace, min(counts, default=None), cluster_id)
    yield from doctor_postgres.rights(facts)
    yield from doctor_postgres.replicas(facts)
    yield from doctor_postgres.pooler(facts)
    yield from doctor_kafka.clock("Postgres", ClockFacts(facts.clock_ahead_ms, facts.clock_error_ms))
