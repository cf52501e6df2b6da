"""An answer without an offset is none: brokers that went away meanwhile, and a driver that tells of no error (chaos)."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka import inspection
from ductor_stream.kafka.offsets import OffsetQuestions
from ductor_stream.kafka.task_stands import GroupOffsets, ask_stands
from ductor_stream.kafka.topics import AdminConfig
from ductor_stream.ports import UNREAD
from ductor_stream.protocol.topics import Topics

TOPICS = Topics("shop")
PLACE: Any = ("run-events", 4)


class Answer(NamedTuple):
    offset: int


class Admin:
    """Answers each question with the next of these offsets, the last one for ever."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)

    def list_offsets(self, places: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Answer]]:
        offset = self.offsets.pop(0) if len(self.offsets) > 1 else self.offsets[0]
        answered: Future[Answer] = Future()
        answered.set_result(Answer(offset))
        return dict.fromkeys(places, answered)


class Standing:
    """The part of ``Positions`` that is asked and changed: one place, out of range at 77."""

    def __init__(self) -> None:
        self.at, self.renewed = 77, set[Any]()
        self.out_of_range = {PLACE}

    def position(self, place: Any) -> int:
        return self.at

    def restart(self, place: Any, offset: int) -> None:
        self.out_of_range.discard(place)
        self.at = offset


def test_a_range_is_not_lost_while_nobody_knows_where_the_log_begins() -> None:
    """It was, up to offset -1001, and from -1001 on once more when the brokers were back: two letters that say nothing."""
    standing: Any = Standing()
    questions = OffsetQuestions(Admin(OFFSET_INVALID), TOPICS, 0.1)  # type: ignore[arg-type]
    assert questions.mend(standing) == []
    assert (standing.position(PLACE), standing.out_of_range) == (77, {PLACE})
    with pytest.raises(LogUnavailable, match="does not tell the start of .*brokers went away"):
        questions.ask([PLACE], "start")


def test_it_goes_on_when_they_are_back() -> None:
    standing: Any = Standing()
    (gap,) = OffsetQuestions(Admin(79, 90), TOPICS, 0.1).mend(standing)  # type: ignore[arg-type]
    assert (gap.from_offset, gap.to_offset, standing.position(PLACE)) == (77, 79, 79)


class Committed:
    def ask(self, *_: Any) -> Any:
        return dict


def test_where_a_task_topic_stands_is_not_said_of_such_a_partition() -> None:
    """Else all of its tasks would count as read, and be taken for lost."""
    name, groups = TOPICS.tasks("default"), Committed()
    for offsets, known in (((3, 9), True), ((OFFSET_INVALID, 9), False), ((3, OFFSET_INVALID), False)):
        admin: Any = Admin(*offsets)
        asked: GroupOffsets = groups  # type: ignore[assignment]
        found = ask_stands(admin, asked, TOPICS, {name: 1}, 0.1)()
        assert found is not None
        assert [(stand.start, stand.end, stand.committed) for stand in found.values()] == [(3, 9, UNREAD)] * known


def test_a_count_of_what_waits_is_asked_again() -> None:
    place, config = TopicPartition("shop", 4), AdminConfig(bootstrap="", topics=TOPICS, timeout=0.2)
    assert inspection._offsets(Admin(OFFSET_INVALID, 9), [place], "latest", config) == {4: 9}  # type: ignore[arg-type]
    with pytest.raises(LogUnavailable, match="does not tell the offsets of shop"):
        inspection._offsets(Admin(OFFSET_INVALID), [place], "latest", config)  # type: ignore[arg-type]
