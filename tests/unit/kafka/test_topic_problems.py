"""What topics a namespace needs, and what is said of those that do not fit."""

from __future__ import annotations

import pytest

from ductor_stream.kafka.topics import plan, problems
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.topics import Topics

SHOP = Topics("shop")
INBOUND_NAMES = [SHOP.inbound(topic) for topic in INBOUND]


def test_the_plan_names_every_topic_of_the_wire_contract() -> None:
    assert {each.name: each.partitions for each in plan(SHOP, ["default", "payments"], partitions=6)} == {
        "ductor.shop.run-events": 6,
        "ductor.shop.attempt-results": 6,
        "ductor.shop.wakeups": 6,
        "ductor.shop.tasks.default": 6,
        "ductor.shop.tasks.payments": 6,
        "ductor.shop.attempt-control": 1,
        "ductor.shop.run-lifecycle": 4,
        "ductor.shop.dead-letters": 1,
    }


def test_every_topic_states_how_long_it_keeps_what() -> None:
    for each in plan(SHOP, ["default"]):
        assert each.config["cleanup.policy"] == "delete"
        assert int(each.config["retention.ms"]) > 0
        assert each.config["message.timestamp.type"] == "LogAppendTime"
        # A payload of 900,000 bytes with its envelope must fit.
        assert int(each.config["max.message.bytes"]) > 1_000_000
        assert each.replicas == -1


@pytest.mark.parametrize(("replicas", "least"), [(-1, None), (1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_with_three_replicas_one_broker_may_be_away(replicas: int, least: str | None) -> None:
    assert {each.config.get("min.insync.replicas") for each in plan(SHOP, replicas=replicas)} == {least}


def test_nothing_is_wrong_with_equal_topics_at_or_above_n() -> None:
    assert problems(SHOP, INBOUND_NAMES, dict.fromkeys(INBOUND_NAMES, 4), 4) == []
    assert problems(SHOP, INBOUND_NAMES, dict.fromkeys(INBOUND_NAMES, 8), 4) == []
    assert problems(SHOP, INBOUND_NAMES, dict.fromkeys(INBOUND_NAMES, 8), None) == []


def test_unequal_topics_are_to_be_raised_to_the_largest() -> None:
    counts = dict.fromkeys(INBOUND_NAMES, 4) | {SHOP.run_events: 8}
    found = problems(SHOP, INBOUND_NAMES, counts, 4)
    assert [each.topic for each in found] == [SHOP.attempt_results, SHOP.wakeups]
    assert all(each.fatal and "--partitions 8" in each.text and each.topic in each.text for each in found)


def test_topics_below_n_are_to_be_raised_to_n() -> None:
    counts = dict.fromkeys(INBOUND_NAMES, 4) | {SHOP.wakeups: 2}
    found = problems(SHOP, INBOUND_NAMES, counts, 6)
    assert [each.topic for each in found] == INBOUND_NAMES
    assert all("created with 6 run partitions" in each.text and "--partitions 6" in each.text for each in found)


def test_a_missing_inbound_topic_is_fatal_and_a_missing_task_topic_is_not() -> None:
    counts = dict.fromkeys(INBOUND_NAMES[:2], 4)
    found = problems(SHOP, [*INBOUND_NAMES, SHOP.tasks("payments")], counts, None)
    assert [(each.topic, each.fatal) for each in found] == [(SHOP.wakeups, True), (SHOP.tasks("payments"), False)]
    assert all("topics create" in each.text for each in found)
