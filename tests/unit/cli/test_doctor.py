"""``doctor``'s judgement: each thing that may be wrong, made up, is found with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ductor_stream.cli import doctor_kafka, doctor_postgres
from ductor_stream.cli.doctor_kafka import Verdict
from ductor_stream.kafka.homes import HomeFacts
from ductor_stream.kafka.inspection import ClockFacts, ClusterFacts, GroupFacts, TopicFacts
from ductor_stream.kafka.topics import plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.inspection import PostgresFacts

TOPICS = Topics("shop")
NAMES = [each.name for each in plan(TOPICS, ["default"])]
GROUPS = [TOPICS.coordinator_group, TOPICS.worker_group("default")]
EVERYTHING = frozenset({"read", "write", "create", "delete", "alter", "describe"})
NEW = {
    "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
    "group.consumer.assignors": "uniform,range",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
}
SOUND_TOPIC = TopicFacts(
    4, 3, 3, {"min.insync.replicas": "2", "retention.ms": "604800000", "max.message.bytes": "1048588"}, EVERYTHING
)


def topic(**changes: Any) -> TopicFacts:
    config = {**SOUND_TOPIC.config, **{k.replace("_", "."): v for k, v in changes.pop("config", {}).items()}}
    return msgspec.structs.replace(SOUND_TOPIC, config=config, **changes)


def cluster(config: dict[str, str] | None = None, **changes: Any) -> ClusterFacts:
    sound = ClusterFacts(
        cluster_id="one",
        brokers=3,
        broker_config=NEW if config is None else config,
        topics=dict.fromkeys(NAMES, SOUND_TOPIC),
        groups={name: GroupFacts(1, "consumer", EVERYTHING) for name in GROUPS},
    )
    return msgspec.structs.replace(sound, **changes)


def told(verdicts: Iterator[Verdict]) -> list[tuple[str, str, str]]:
    return [(each.level, each.text, each.remedy) for each in verdicts]


def one(verdicts: Iterator[Verdict]) -> Verdict:
    (found,) = verdicts
    return found


def postgres(**changes: Any) -> PostgresFacts:
    sound = PostgresFacts(
        version="18.1", version_number=180001, standby=False, user="orders", partitions=4, cluster_id="one"
    )
    return msgspec.structs.replace(sound, **changes)


# -- all is well ------------------------------------------------------------------------------------


def test_a_sound_system_has_nothing_to_mend() -> None:
    facts, rows = cluster(), postgres()
    found = [
        *doctor_kafka.cluster(facts, "b:9092"),
        *doctor_kafka.group_protocol(facts, "auto", GROUPS[0]),
        *doctor_kafka.session_timeout(facts, "auto", GROUPS),
        *doctor_kafka.co_partitioning(facts, TOPICS, NAMES, 4),
        *doctor_kafka.replication(facts),
        *doctor_kafka.retention(facts, TOPICS),
        *doctor_kafka.rights(facts, TOPICS, GROUPS),
        *doctor_kafka.homes(HomeFacts(40, 0), TOPICS.run_events),
        *doctor_kafka.clock("Kafka", ClockFacts(3, 1)),
        *doctor_postgres.server(rows),
        *doctor_postgres.schema(rows),
        *doctor_postgres.namespace(rows, "shop", 4, "one"),
        *doctor_postgres.rights(rows),
        *doctor_postgres.replicas(rows),
        *doctor_postgres.pooler(rows),
    ]
    assert {each.level for each in found} == {"ok"}
    assert {each.remedy for each in found} == {""}
    assert len({each.check for each in found}) == 15


# -- the brokers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "version"),
    [
        (NEW, "Kafka 4.1 or newer"),
        ({"group.share.session.timeout.ms": "1"}, "Kafka 3.9 or newer"),
        ({"group.consumer.session.timeout.ms": "1"}, "Kafka 3.7 or newer"),
        ({"group.min.session.timeout.ms": "1"}, "Kafka before 3.7"),
        ({}, "version unknown"),
    ],
)
def test_the_version_is_told_by_what_can_be_configured(config: dict[str, str], version: str) -> None:
    assert one(doctor_kafka.cluster(cluster(config), "b:9092")).text.endswith(f"cluster one, {version}")


def test_a_hidden_broker_configuration_is_noted_and_nothing_is_made_up() -> None:
    facts = cluster({}, denied=["the brokers' configuration"])
    assert [each.level for each in doctor_kafka.cluster(facts, "b:1")] == ["ok", "note"]
    assert told(doctor_kafka.group_protocol(facts, "consumer", GROUPS[0])) == []
    assert told(doctor_kafka.session_timeout(facts, "auto", GROUPS)) == []
    assert one(doctor_kafka.rights(facts, TOPICS, GROUPS)).level == "ok"


def test_the_new_protocol_must_be_offered_where_it_is_asked_for() -> None:
    old = cluster({"group.min.session.timeout.ms": "6000"})
    without_range = cluster({**NEW, "group.consumer.assignors": "uniform"})
    for facts in (old, without_range):
        found = one(doctor_kafka.group_protocol(facts, "consumer", GROUPS[0]))
        assert found.level == "wrong"
        assert "DUCTOR_KAFKA_PROTOCOL=auto" in found.remedy
        assert one(doctor_kafka.group_protocol(facts, "auto", GROUPS[0])).text.startswith("classic")


def test_a_slow_session_of_the_new_protocol_is_told_with_how_to_set_it() -> None:
    slow = cluster(
        {**NEW, "group.consumer.session.timeout.ms": "45000", "group.consumer.min.session.timeout.ms": "45000"}
    )
    found = one(doctor_kafka.session_timeout(slow, "auto", GROUPS))
    assert found.level == "warning"
    assert "unserved for 45 s" in found.text
    assert "set group.consumer.min.session.timeout.ms=6000 (it is 45000)" in found.remedy
    assert f"--entity-name {TOPICS.coordinator_group} --add-config consumer.session.timeout.ms=6000" in found.remedy
    unused = msgspec.structs.replace(slow, groups={})
    assert one(doctor_kafka.session_timeout(unused, "classic", GROUPS)).level == "ok"
    assert one(doctor_kafka.session_timeout(unused, "auto", GROUPS)).level == "warning"


def test_what_the_members_speak_counts_more_than_what_they_would() -> None:
    classic = {name: GroupFacts(1, "classic", EVERYTHING) for name in GROUPS}
    slow = cluster({**NEW, "group.consumer.session.timeout.ms": "45000"}, groups=classic)
    assert one(doctor_kafka.group_protocol(slow, "auto", GROUPS[0])).text.startswith("classic, which the members")
    assert one(doctor_kafka.session_timeout(slow, "auto", GROUPS)).level == "ok"


def test_a_producer_that_partitions_otherwise_is_noted() -> None:
    found = one(doctor_kafka.homes(HomeFacts(seen=40, astray=30), TOPICS.run_events))
    assert (found.level, found.text.startswith("30 of the 40 newest records")) == ("note", True)
    assert "partitioner=murmur2_random" in found.remedy


def test_a_groups_own_session_time_out_wins_over_the_brokers() -> None:
    groups = {name: GroupFacts(0, config={"consumer.session.timeout.ms": "6000"}) for name in GROUPS}
    slow = cluster({**NEW, "group.consumer.session.timeout.ms": "45000"}, groups=groups)
    assert one(doctor_kafka.session_timeout(slow, "auto", GROUPS)).text.startswith("6000 ms")
    groups[GROUPS[1]] = GroupFacts(0)
    assert GROUPS[1] in one(doctor_kafka.session_timeout(slow, "auto", GROUPS)).text


def test_a_broker_that_refuses_our_classic_session_is_wrong() -> None:
    facts = cluster({"group.min.session.timeout.ms": "10000"}, groups={})
    assert one(doctor_kafka.session_timeout(facts, "auto", GROUPS)).level == "wrong"


# -- topics -----------------------------------------------------------------------------------------


def without(name: str) -> ClusterFacts:
    return cluster(topics={each: SOUND_TOPIC for each in NAMES if each != name})


def test_missing_topics_are_named() -> None:
    found = one(doctor_kafka.co_partitioning(without(TOPICS.wakeups), TOPICS, NAMES, None))
    assert (found.level, found.text) == ("wrong", f"topic {TOPICS.wakeups} is missing")
    assert "topics create" in found.remedy
    assert one(doctor_kafka.co_partitioning(without(TOPICS.tasks("default")), TOPICS, NAMES, None)).level == "warning"


def test_inbound_topics_must_be_co_partitioned_and_as_many_as_the_namespace_has() -> None:
    facts = cluster(topics={**dict.fromkeys(NAMES, SOUND_TOPIC), TOPICS.run_events: topic(partitions=6)})
    uneven = list(doctor_kafka.co_partitioning(facts, TOPICS, NAMES, 4))
    assert [each.level for each in uneven] == ["wrong", "wrong"]
    assert "--topic ductor.shop.wakeups --partitions 6" in uneven[1].remedy
    few = list(doctor_kafka.co_partitioning(cluster(), TOPICS, NAMES, 8))
    assert len(few) == 3
    assert "created with 8 run partitions" in few[0].text


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({"replicas": 1, "in_sync": 1, "config": {"min.insync.replicas": "1"}}, "warning", "one replica"),
        ({"in_sync": 2}, "warning", "2 of 3 replicas in sync"),
        ({"in_sync": 1}, "wrong", "1 replicas in sync where min.insync.replicas=2"),
        ({"config": {"min.insync.replicas": "1"}}, "warning", "min.insync.replicas=1"),
        ({"config": {"min.insync.replicas": "3"}}, "warning", "min.insync.replicas=3 of 3"),
    ],
)
def test_weak_replication_is_told_per_topic(changes: dict[str, Any], level: str, text: str) -> None:
    facts = cluster(topics={**dict.fromkeys(NAMES, SOUND_TOPIC), TOPICS.wakeups: topic(**changes)})
    found = one(doctor_kafka.replication(facts))
    assert found.level == level
    assert found.text.startswith(text)
    assert found.text.endswith(TOPICS.wakeups)
    assert found.remedy


def test_one_broker_is_noted_and_not_topic_by_topic() -> None:
    facts = cluster(brokers=1, topics=dict.fromkeys(NAMES, topic(replicas=1, in_sync=1)))
    assert one(doctor_kafka.replication(facts)).level == "note"


HOSTS_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "3600000"}


@pytest.mark.parametrize(
    ("config", "level", "text"),
    [
        ({"cleanup.policy": "compact"}, "wrong", "is compacted"),
        ({"retention.ms": "3600000"}, "warning", "keeps records for 1 h"),
        ({"max.message.bytes": "1000"}, "warning", "1000 bytes at most"),
        (HOSTS_TIME, "warning", f"ahead are refused: {TOPICS.run_events}"),
        (HOSTS_TIME | {"message.timestamp.after.max.ms": str(2**63 - 1)}, "ok", "records are kept"),
        ({"retention.ms": "-1"}, "ok", "records are kept"),
    ],
)
def test_records_must_live_and_fit(config: dict[str, str], level: str, text: str) -> None:
    facts = cluster(topics={**dict.fromkeys(NAMES, SOUND_TOPIC), TOPICS.run_events: topic(config=config)})
    found = one(doctor_kafka.retention(facts, TOPICS))
    assert found.level == level
    assert text in found.text


def test_missing_rights_are_named() -> None:
    facts = cluster(
        topics={**dict.fromkeys(NAMES, SOUND_TOPIC), TOPICS.run_events: topic(rights=frozenset({"describe", "read"}))},
        groups={GROUPS[0]: GroupFacts(0, rights=frozenset({"describe"}))},
        denied=[TOPICS.dead_letters],
    )
    found = one(doctor_kafka.rights(facts, TOPICS, GROUPS))
    assert found.level == "wrong"
    assert found.text == (
        f"not allowed: DESCRIBE on {TOPICS.dead_letters}, WRITE on topic {TOPICS.run_events}, "
        f"READ on group {TOPICS.coordinator_group}"
    )
    # A topic that we may not see is not called missing.
    told_missing = doctor_kafka.co_partitioning(facts, TOPICS, NAMES, None)
    assert [each.level for each in told_missing] == ["ok"]


def test_a_clock_that_is_off_is_told_beyond_doubt_only() -> None:
    assert one(doctor_kafka.clock("Postgres", ClockFacts(-9000, 2))).level == "warning"
    assert "9000 ms behind this machine's" in one(doctor_kafka.clock("Postgres", ClockFacts(-9000, 2))).text
    assert one(doctor_kafka.clock("Postgres", ClockFacts(9000, 8000))).level == "ok"


# -- Postgres ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": "13.4", "version_number": 130004}, "Postgres 13.4 is too old"),
        ({"standby": True}, "is a standby"),
        ({"durable": False}, "fsync or full_page_writes is off"),
    ],
)
def test_a_server_that_cannot_be_the_truth_is_wrong(changes: dict[str, Any], text: str) -> None:
    wrong = [each for each in doctor_postgres.server(postgres(**changes)) if each.level == "wrong"]
    assert len(wrong) == 1
    assert text in wrong[0].text


@pytest.mark.parametrize(
    ("changes", "level", "remedy"),
    [
        ({"due": ["0001_pre_initial"]}, "wrong", "run `ductor-stream migrate`"),
        ({"due": ["0002_post_tidy"]}, "note", "run `ductor-stream migrate --phase post`"),
        ({"newer": "the schema is newer"}, "wrong", "deploy the release that the schema is of"),
    ],
)
def test_a_schema_of_another_release_is_told(changes: dict[str, Any], level: str, remedy: str) -> None:
    found = one(doctor_postgres.schema(postgres(**changes)))
    assert (found.level, found.remedy) == (level, remedy)


def test_the_namespaces_row_must_fit_the_cluster() -> None:
    other = one(doctor_postgres.namespace(postgres(cluster_id="two"), "shop", 4, "one"))
    assert (other.level, "made on cluster two" in other.text) == ("wrong", True)
    more = one(doctor_postgres.namespace(postgres(), "shop", 6, "one"))
    assert (more.level, "sent home" in more.text) == ("note", True)
    new = one(doctor_postgres.namespace(postgres(partitions=None, cluster_id=None), "shop", 4, "one"))
    assert (new.level, "is new" in new.text) == ("note", True)
    unknown = one(doctor_postgres.namespace(postgres(), "shop", None, None))
    assert unknown.level == "ok"


def test_missing_rights_in_postgres_are_named() -> None:
    found = one(doctor_postgres.rights(postgres(missing_rights=["insert on eec_outbox"])))
    assert (found.level, found.text) == ("wrong", "orders may not insert on eec_outbox")
    assert "grant" in found.remedy


def test_asynchronous_replicas_are_a_warning() -> None:
    found = one(doctor_postgres.replicas(postgres(replicas=2)))
    assert (found.level, "2 replica(s), none synchronous" in found.text) == ("warning", True)
    waits = one(doctor_postgres.replicas(postgres(standby_names="ANY 1 (*)")))
    assert (waits.level, "commits wait" in waits.text) == ("warning", True)
    assert one(doctor_postgres.replicas(postgres(replicas=1, standby_names="ANY 1 (*)"))).level == "ok"


def test_a_pooler_in_transaction_mode_is_wrong() -> None:
    found = one(doctor_postgres.pooler(postgres(pooling="transaction")))
    assert (found.level, "pool_mode=session" in found.remedy) == ("wrong", True)
    assert one(doctor_postgres.pooler(postgres(pooling="session"))).level == "note"
