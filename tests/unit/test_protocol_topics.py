"""Names of topics and groups, and what may be a name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductor_stream.errors import InvalidConfig, InvalidDefinition
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.limits import MAX_NAME, MAX_NAMESPACE, MAX_PREFIX, MAX_TOPIC
from ductor_stream.protocol.topics import Topics, is_name, is_topic

NAMES = st.from_regex(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}", fullmatch=True)


def test_the_names_of_the_contract() -> None:
    topics = Topics("shop")
    assert topics.run_events == "ductor.shop.run-events"
    assert topics.attempt_results == "ductor.shop.attempt-results"
    assert topics.wakeups == "ductor.shop.wakeups"
    assert topics.attempt_control == "ductor.shop.attempt-control"
    assert topics.run_lifecycle == "ductor.shop.run-lifecycle"
    assert topics.dead_letters == "ductor.shop.dead-letters"
    assert topics.tasks("payments") == "ductor.shop.tasks.payments"
    assert topics.coordinator_group == "ductor.shop.coordinator"
    assert topics.worker_group("payments") == "ductor.shop.worker.payments"


def test_another_prefix_holds_for_topics_and_groups() -> None:
    topics = Topics("shop", prefix="acme-eu.")
    assert topics.run_events == "acme-eu.shop.run-events"
    assert topics.coordinator_group == "acme-eu.shop.coordinator"
    assert Topics("shop", prefix="").run_events == "shop.run-events"


def test_short_names_lead_there_and_back() -> None:
    topics = Topics("shop")
    assert [topics.short(topics.inbound(short)) for short in INBOUND] == list(INBOUND)
    assert topics.inbound("wakeups") == topics.wakeups
    assert topics.short(topics.dead_letters) is None
    assert topics.short(Topics("other").run_events) is None


@settings(deadline=None)
@given(NAMES)
def test_a_queue_is_read_off_its_topic(queue: str) -> None:
    topics = Topics("shop")
    assert topics.queue_of(topics.tasks(queue)) == queue


@pytest.mark.parametrize(
    "topic", ["ductor.shop.run-events", "ductor.shop.tasks.", "ductor.shop2.tasks.x", "tasks.x", ""]
)
def test_other_topics_have_no_queue(topic: str) -> None:
    assert Topics("shop").queue_of(topic) is None


@pytest.mark.parametrize("namespace", ["", "a.b", "a/b", "ä", "x" * (MAX_NAMESPACE + 1), "shop\n", "shop "])
def test_a_namespace_with_other_characters_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidConfig, match="namespace"):
        Topics(namespace)


@pytest.mark.parametrize("prefix", ["a b", "ä.", "x" * (MAX_PREFIX + 1), "x\n"])
def test_a_prefix_with_other_characters_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidConfig, match="prefix"):
        Topics("shop", prefix)


@pytest.mark.parametrize("queue", ["", "a/b", "ä", "x" * (MAX_NAME + 1), "payments\n"])
def test_a_queue_with_other_characters_is_refused(queue: str) -> None:
    assert not is_name(queue)
    with pytest.raises(InvalidDefinition, match="queue"):
        Topics("shop").tasks(queue)
    with pytest.raises(InvalidDefinition, match="queue"):
        Topics("shop").worker_group(queue)


def test_the_longest_names_are_still_a_topic_of_kafka() -> None:
    topics = Topics("n" * MAX_NAMESPACE, "p" * MAX_PREFIX)
    assert len(topics.tasks("q" * MAX_NAME)) <= MAX_TOPIC


def test_topics_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Topics("shop").namespace = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", ".a", "...", "x" * 249])
def test_names_that_kafka_takes_for_a_topic(name: str) -> None:
    assert is_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "a\0", "x" * 250])
def test_names_that_no_topic_of_kafka_can_have(name: str) -> None:
    assert not is_topic(name)
