"""What ``doctor`` thinks of a Kafka cluster, its topics and groups. Pure: facts in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from ductor_stream.kafka.homes import HomeFacts
from ductor_stream.kafka.inspection import ClockFacts, ClusterFacts, TopicFacts
from ductor_stream.kafka.topics import DAY_MS, problems
from ductor_stream.protocol.topics import Topics

Level = Literal["ok", "note", "warning", "wrong"]

SESSION_MS = 6_000
"""How soon a killed process should lose its partitions; what the classic protocol's members ask for."""

SLOW_SESSION_MS = 15_000
"""Above this a take-over is felt by users."""

BROKERS_DEFAULT_SESSION_MS = 45_000
LEAST_RECORD_BYTES = 1_000_000
"""A payload of 900,000 bytes with its envelope."""

_TIME = "message.timestamp.type"
_FOREVER_MS = 2**63 - 1

SKEW_MS = 2_000.0
"""Clocks that are synchronised at all are within milliseconds."""

_INBOUND_RIGHTS = frozenset({"read", "write", "describe"})
_WRITTEN = frozenset({"write", "describe"})


class Verdict(msgspec.Struct, frozen=True):
    """What one check found. ``remedy`` says what to do; empty where there is nothing to do."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def cluster(facts: ClusterFacts, bootstrap: str) -> Iterator[Verdict]:
    """That it was reached, and what it is. No request asks for a version: what can be configured tells the least it is."""
    since = _least_version(facts.broker_config)
    brokers = "1 broker" if facts.brokers == 1 else f"{facts.brokers} brokers"
    yield Verdict("kafka", "ok", f"reached at {bootstrap}: {brokers}, cluster {facts.cluster_id}, {since}")
    if "the brokers' configuration" in facts.denied:
        yield Verdict(
            "kafka", "note", "the brokers' configuration may not be read: group protocol and time-outs are not checked",
            "allow DESCRIBE_CONFIGS on the cluster to whoever runs `doctor`",
        )  # fmt: skip


def _least_version(config: Mapping[str, str]) -> str:
    if not config:
        return "version unknown"
    if "streams" in config.get("group.coordinator.rebalance.protocols", ""):
        return "Kafka 4.1 or newer"
    if "group.share.session.timeout.ms" in config:
        return "Kafka 3.9 or newer"
    return "Kafka 3.7 or newer" if "group.consumer.session.timeout.ms" in config else "Kafka before 3.7"


def group_protocol(facts: ClusterFacts, wanted: str, group: str) -> Iterator[Verdict]:
    """Which protocol coordinators will join by, or have joined by."""
    if not facts.broker_config:
        return
    offered = _offers_new(facts)
    if wanted == "consumer" and not offered:
        yield Verdict(
            "group-protocol", "wrong", "protocol is `consumer`, and the brokers do not offer it with the range assignor",
            "set DUCTOR_KAFKA_PROTOCOL=auto, or group.coordinator.rebalance.protocols=classic,consumer and "
            "group.consumer.assignors=uniform,range on the brokers",
        )  # fmt: skip
    elif wanted == "auto" and not offered:
        yield Verdict("group-protocol", "ok", "classic: the brokers do not offer the new protocol with range")
    else:
        told = "consumer (KIP-848), with the range assignor" if _joins_new(facts, wanted) else "classic, as configured"
        if _joins_new(facts, wanted) and not _speaks_new(facts, wanted, group):
            told = "classic, which the members that are up speak; the brokers offer the new protocol too"
        yield Verdict("group-protocol", "ok", told)


def _offers_new(facts: ClusterFacts) -> bool:
    protocols = facts.broker_config.get("group.coordinator.rebalance.protocols", "")
    assignors = facts.broker_config.get("group.consumer.assignors", "")
    return "consumer" in protocols.split(",") and any("range" in each.lower() for each in assignors.split(","))


def _joins_new(facts: ClusterFacts, wanted: str) -> bool:
    return wanted != "classic" and _offers_new(facts)


def _speaks_new(facts: ClusterFacts, wanted: str, group: str) -> bool:
    """What the members that are up speak; where there are none, what they would."""
    found = facts.groups.get(group)
    return found.protocol == "consumer" if found is not None and found.members else _joins_new(facts, wanted)


def session_timeout(facts: ClusterFacts, wanted: str, groups: Sequence[str]) -> Iterator[Verdict]:
    """After how long a killed process loses its partitions: in the new protocol the broker decides."""
    if not facts.broker_config:
        return
    new = [name for name in groups if _speaks_new(facts, wanted, name)]
    if not new:
        least = int(facts.broker_config.get("group.min.session.timeout.ms", SESSION_MS))
        if least > SESSION_MS:
            yield Verdict(
                "session-timeout", "wrong", f"brokers refuse session time-outs below {least} ms; ours is {SESSION_MS} ms",
                f"set group.min.session.timeout.ms={SESSION_MS} on the brokers, or session.timeout.ms under [kafka]",
            )  # fmt: skip
        else:
            yield Verdict("session-timeout", "ok", f"{SESSION_MS} ms, asked for by the members (classic protocol)")
        return
    slow = {name: ms for name in new if (ms := effective_session_ms(facts, name)) > SLOW_SESSION_MS}
    if not slow:
        times = [effective_session_ms(facts, name) for name in new]
        yield Verdict("session-timeout", "ok", f"{max(times)} ms, from the brokers (new protocol)")
        return
    floor = int(facts.broker_config.get("group.consumer.min.session.timeout.ms", BROKERS_DEFAULT_SESSION_MS))
    yield Verdict(
        "session-timeout", "warning",
        f"partitions of a killed process stay unserved for {max(slow.values()) / 1000:g} s (new protocol: the brokers "
        f"decide) in group {', '.join(slow)}",
        _how_to_set(sorted(slow), floor),
    )  # fmt: skip


def effective_session_ms(facts: ClusterFacts, group: str) -> int:
    """The session time-out that the brokers apply to a group of the new protocol."""
    own = facts.groups[group].config.get("consumer.session.timeout.ms") if group in facts.groups else None
    return int(own or facts.broker_config.get("group.consumer.session.timeout.ms") or BROKERS_DEFAULT_SESSION_MS)


def _how_to_set(groups: Sequence[str], floor: int) -> str:
    first = (
        f"on the brokers set group.consumer.min.session.timeout.ms={SESSION_MS} (it is {floor}), then "
        if floor > SESSION_MS
        else ""
    )
    commands = "; ".join(
        f"kafka-configs.sh --alter --entity-type groups --entity-name {name} "
        f"--add-config consumer.session.timeout.ms={SESSION_MS}"
        for name in groups
    )
    return f"{first}{commands}. Or for all groups: group.consumer.session.timeout.ms={SESSION_MS} on the brokers"


def co_partitioning(
    facts: ClusterFacts, topics: Topics, names: Sequence[str], recorded: int | None
) -> Iterator[Verdict]:
    """Missing topics, inbound topics that differ, fewer partitions than the namespace's row has."""
    counts = {name: each.partitions for name, each in facts.topics.items()}
    found = problems(topics, [name for name in names if name not in facts.denied], counts, recorded)
    for problem in found:
        text, _, remedy = problem.text.partition(": ")
        yield Verdict("topics", "wrong" if problem.fatal else "warning", text, remedy)
    if not found:
        yield Verdict(
            "topics", "ok", f"{len(names)} topics; inbound ones with {_spread(facts, topics)} partitions each"
        )


def _spread(facts: ClusterFacts, topics: Topics) -> str:
    return "/".join(
        sorted({str(facts.topics[name].partitions) for name in topics.inbound_names if name in facts.topics})
    )


def homes(facts: HomeFacts, topic: str) -> Iterator[Verdict]:
    """Whether producers partition as Kafka's Java client does."""
    if facts.astray:
        yield Verdict(
            "partitioner",
            "note",
            f"{facts.astray} of the {facts.seen} newest records in {topic} lie on another partition than their run's: "
            "they are sent home, which costs a hop each",
            "let their producers use murmur2 (librdkafka: partitioner=murmur2_random)",
        )
    else:
        yield Verdict("partitioner", "ok", f"the {facts.seen} newest records in {topic} lie where their runs are")


def replication(facts: ClusterFacts) -> Iterator[Verdict]:
    """Whether a broker may be lost without records, and without a stop."""
    # One that is up, of several: their topics tell.
    if facts.brokers == 1 and all(topic.replicas < 2 for topic in facts.topics.values()):
        yield Verdict(
            "replication", "note", "one broker: what it loses is lost. Runs go on (Postgres has them), requests do not",
            "in production: three brokers, topics with three replicas and min.insync.replicas=2",
        )  # fmt: skip
        return
    by_text: dict[tuple[Level, str, str], list[str]] = {}
    for name, topic in facts.topics.items():
        for level, text, remedy in _replication_of(topic):
            by_text.setdefault((level, text, remedy), []).append(name)
    for (level, text, remedy), names in by_text.items():
        yield Verdict("replication", level, f"{text}: {', '.join(sorted(names))}", remedy)
    if facts.topics and not by_text:
        yield Verdict("replication", "ok", "every topic outlives the loss of a broker")


def _replication_of(topic: TopicFacts) -> Iterator[tuple[Level, str, str]]:
    least = int(topic.config.get("min.insync.replicas", "1"))
    if topic.in_sync < least:
        text = f"{topic.in_sync} replicas in sync where min.insync.replicas={least}: records are refused"
        yield "wrong", text, "bring the missing brokers back"
    elif topic.in_sync < topic.replicas:
        yield "warning", f"{topic.in_sync} of {topic.replicas} replicas in sync", "bring the missing brokers back"
    if topic.replicas < 2:
        yield "warning", "one replica: a lost broker takes records along", "reassign with --replication-factor 3"
    elif least < 2:
        text = "min.insync.replicas=1: an acknowledged record may be on one broker only"
        yield "warning", text, "kafka-configs.sh --alter --entity-type topics --add-config min.insync.replicas=2"
    elif least >= topic.replicas:
        text = f"min.insync.replicas={least} of {topic.replicas} replicas: one broker away stops everything"
        yield "warning", text, "lower it to 2, or add a replica"


def _refuses_clocks(config: Mapping[str, str]) -> bool:
    """From Kafka 4.0 on a broker takes nothing whose time is more than an hour ahead, unless it is told otherwise."""
    own = config.get(_TIME, "LogAppendTime") == "CreateTime"
    return own and int(config.get("message.timestamp.after.max.ms", _FOREVER_MS)) < _FOREVER_MS


def retention(facts: ClusterFacts, topics: Topics) -> Iterator[Verdict]:
    """Whether records live until they are read, and large ones fit."""
    before = True
    for name, topic in facts.topics.items():
        keep = int(topic.config.get("retention.ms", DAY_MS))
        if name in topics.inbound_names and "compact" in topic.config.get("cleanup.policy", "delete"):
            before = False
            yield Verdict(
                "retention", "wrong", f"{name} is compacted: of a run's records only the last is kept",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config cleanup.policy=delete",
            )  # fmt: skip
        if name in topics.inbound_names and 0 <= keep < DAY_MS:
            before = False
            yield Verdict(
                "retention", "warning", f"{name} keeps records for {keep / 3_600_000:g} h: a longer outage loses requests",
                "set retention.ms to a week (604800000)",
            )  # fmt: skip
        if int(topic.config.get("max.message.bytes", LEAST_RECORD_BYTES)) < LEAST_RECORD_BYTES:
            before = False
            yield Verdict(
                "retention", "warning", f"{name} takes records of {topic.config['max.message.bytes']} bytes at most",
                "set max.message.bytes=1048588: payloads may have 900,000 bytes",
            )  # fmt: skip
    if timed := sorted(name for name, topic in facts.topics.items() if _refuses_clocks(topic.config)):
        before = False
        yield Verdict(
            "retention", "warning", f"records have the time of their producers, and those of a host whose clock is "
            f"ahead are refused: {', '.join(timed)}",
            f"kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config {_TIME}=LogAppendTime",
        )  # fmt: skip
    if before and facts.topics:
        yield Verdict("retention", "ok", "records are kept for long enough, and large ones fit")


def rights(facts: ClusterFacts, topics: Topics, groups: Sequence[str]) -> Iterator[Verdict]:
    """What this principal may not do, and coordinators and workers have to."""
    lacking = [f"DESCRIBE on {name}" for name in facts.denied if name != "the brokers' configuration"]
    for name, topic in facts.topics.items():
        needed = _INBOUND_RIGHTS if name in topics.inbound_names or topics.queue_of(name) else _WRITTEN
        missing = needed - topic.rights if topic.rights is not None else frozenset()
        lacking += [f"{right.upper()} on topic {name}" for right in sorted(missing)]
    for name in groups:
        group = facts.groups.get(name)
        if group is not None and group.rights is not None and "read" not in group.rights:
            lacking.append(f"READ on group {name}")
    if lacking:
        yield Verdict(
            "kafka-rights", "wrong", f"not allowed: {', '.join(lacking)}",
            "grant it to the principal that coordinators and workers use (kafka-acls.sh --add --allow-principal …)",
        )  # fmt: skip
    elif facts.topics:
        yield Verdict("kafka-rights", "ok", "all that coordinators and workers do is allowed")


def clock(name: str, facts: ClockFacts) -> Iterator[Verdict]:
    """Whether another clock and this machine's agree."""
    ahead, error = facts.ahead_ms, facts.error_ms
    way = "ahead of" if ahead >= 0 else "behind"
    text = f"{name}'s clock is {abs(ahead):.0f} ms {way} this machine's (± {error:.0f} ms)"
    if abs(ahead) - error > SKEW_MS:
        remedy = "let NTP set the clocks. Timers follow Postgres's clock alone; logs and certificates do not"
        yield Verdict("clock", "warning", text, remedy)
    else:
        yield Verdict("clock", "ok", text)
