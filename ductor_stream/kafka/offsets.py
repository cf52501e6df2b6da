"""Where partitions begin and end, asked of the broker, and what to do with a position that it does not have."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition, admin

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.inbound import Positions
from ductor_stream.kafka.membership import Place
from ductor_stream.ports import UNREAD, Inbound
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.offsets")

MEND_SECONDS = 0.5
"""Between two tries to find out where a partition begins whose position was out of range."""

PASSING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""What a broker answers while a topic is new or its leader moves: asked again within the time that a question has."""

PASSING_SECONDS = 0.05

Which = Literal["start", "end", "written end"]

_Spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # exported at run time, not in the driver's stubs


class Gap(msgspec.Struct, frozen=True):
    """Records of a partition that were lost unread: offsets ``from_offset`` up to, but without, ``to_offset``.

    ``to_offset`` not above ``from_offset``: the topic was re-created, or its log truncated; reading goes on at
    ``to_offset``, and how much stood unread from ``from_offset`` on is not known.
    """

    topic: Inbound
    partition: int
    from_offset: int
    to_offset: int


def offset_in(answer: Any) -> int:
    """The offset in an answer to ``list_offsets``. Raises TimeoutError where there is none, and no error either: the driver
    leaves it invalid (-1001) for partitions whose brokers went away while it asked."""
    found: int = answer.offset
    if found < 0:
        raise TimeoutError("brokers went away while they were asked")
    return found


class OffsetQuestions:
    """Blocking questions about offsets, each at most ``timeout`` seconds long."""

    def __init__(self, client: admin.AdminClient, topics: Topics, timeout: float) -> None:
        self._client = client
        self._topics = topics
        self._timeout = timeout
        self._mend_at = 0.0

    def ask(self, places: Sequence[Place], which: Which) -> dict[Place, int]:
        """The earliest offset kept, the stable end (no open transaction is before it), or the end of all that is written.

        Raises LogUnavailable.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._ask_once(places, which)
            except (KafkaException, TimeoutError) as error:
                passing = isinstance(error, KafkaException) and error.args[0].code() in PASSING
                if not passing or time.monotonic() > deadline:
                    raise LogUnavailable(f"Kafka does not tell the {which} of {sorted(places)}: {error}") from error
            time.sleep(PASSING_SECONDS)

    def _ask_once(self, places: Sequence[Place], which: Which) -> dict[Place, int]:
        asked = {(self._topics.inbound(topic), partition): (topic, partition) for topic, partition in places}
        spec = _Spec.earliest() if which == "start" else _Spec.latest()
        answers = self._client.list_offsets(
            {TopicPartition(name, partition): spec for name, partition in asked},
            isolation_level=(
                IsolationLevel.READ_UNCOMMITTED if which == "written end" else IsolationLevel.READ_COMMITTED
            ),
            request_timeout=self._timeout,
        )
        return {
            asked[each.topic, each.partition]: offset_in(answer.result(self._timeout + 1))
            for each, answer in answers.items()
        }

    def mend(self, positions: Positions) -> list[Gap]:
        """Go on behind lost ranges: read from the earliest record that is left, and return what was lost.

        A place whose broker does not answer stays at rest until a later call.
        """
        if not positions.out_of_range or time.monotonic() < self._mend_at:
            return []
        self._mend_at = time.monotonic() + MEND_SECONDS
        gaps: list[Gap] = []
        for place in sorted(positions.out_of_range):
            try:
                start, end = self.ask([place], "start")[place], self.ask([place], "end")[place]
            except LogUnavailable as error:
                logger.warning("%s is out of range and its broker does not answer: %s", place, error)
                continue
            position = positions.position(place)
            if start <= position <= end and place not in positions.renewed:
                start = position
            elif position != UNREAD:
                logger.error("%s: records from %s on lost unread, going on at %s", place, position, start)
                gaps.append(Gap(*place, from_offset=position, to_offset=start))
            positions.restart(place, start)
        return gaps
