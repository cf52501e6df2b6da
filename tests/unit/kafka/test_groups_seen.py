"""A group that this principal may not describe is not known: that is not a group without members."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ductor_stream.kafka import inspection
from ductor_stream.kafka.inspection import QueueFacts, inspect_members, inspect_queues
from ductor_stream.kafka.topics import AdminConfig
from ductor_stream.kafka.watch import Described, TopicState
from ductor_stream.protocol.topics import Topics

TOPICS = Topics("shop")
CONFIG = AdminConfig(bootstrap="127.0.0.1:1", topics=TOPICS)
GONE, DENIED = KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED


class Admin:
    """A cluster that says this of groups: how many members there are, or the code of an error."""

    def __init__(self, groups: dict[str, Any]) -> None:
        self._groups = groups

    def describe_consumer_groups(self, names: Sequence[str], **_: object) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = {}
        for name in names:
            found[name] = Future()
            if isinstance(said := self._groups[name], list):
                group = SimpleNamespace(members=said, type=SimpleNamespace(name="CONSUMER"), authorized_operations=None)
                found[name].set_result(group)
            else:
                found[name].set_exception(KafkaException(KafkaError(said)))
        return found


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues with a worker, without one, and whose group is hidden; five tasks wait on each."""
    said = {
        "seen": ["one"],
        "gone": GONE,
        "hidden": DENIED,
        TOPICS.worker_group("seen"): ["one"],
        TOPICS.worker_group("gone"): GONE,
        TOPICS.worker_group("hidden"): DENIED,
    }
    monkeypatch.setattr(inspection, "open_admin", lambda *_: Admin(said))
    monkeypatch.setattr(inspection, "_configs", lambda _admin, _kind, names, *_: {name: {} for name in names})
    monkeypatch.setattr(inspection, "_waiting", lambda *_: 5)
    there = {TOPICS.tasks(queue): TopicState(queue, 1) for queue in ("seen", "gone", "hidden")}
    monkeypatch.setattr(inspection, "describe", lambda *_: Described(there))


@pytest.mark.parametrize(("group", "members"), [("seen", 1), ("gone", 0), ("hidden", None)])
def test_members_of_a_group(group: str, members: int | None) -> None:
    assert inspect_members(CONFIG, group) == members


def test_a_queue_whose_group_is_hidden_is_not_known() -> None:
    assert inspect_queues(CONFIG, ["seen", "gone", "hidden"]) == {"seen": QueueFacts(1, 5), "gone": QueueFacts(0, 5)}
