"""``ports.EventLog`` over Kafka: one group member for the inbound topics, one producer, one watch on the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer

from ductor_stream.errors import LogUnavailable, OwnershipLost, TopicsNotReady
from ductor_stream.kafka import group
from ductor_stream.kafka.offsets import Gap, OffsetQuestions
from ductor_stream.kafka.options import HeardProducer, client_options, open_admin, open_client
from ductor_stream.kafka.producer import RecordProducer
from ductor_stream.kafka.task_stands import GroupOffsets, ask_stands
from ductor_stream.kafka.watch import ClusterWatch, TopicState
from ductor_stream.ports import (
    INBOUND,
    UNREAD,
    Acknowledged,
    Inbound,
    Outgoing,
    Ownership,
    Received,
    TaskPlace,
    TaskStand,
)
from ductor_stream.protocol.topics import Topics, unseen


class KafkaLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``KafkaLog`` needs to know."""

    bootstrap: str
    topics: Topics
    options: Mapping[str, Any] = {}
    """The user's librdkafka options (see ``kafka.options``)."""
    instance_id: str | None = None
    """A stable name of this process (static membership): its restart disturbs no other member."""
    protocol: Literal["auto", "consumer", "classic"] = "auto"
    """The group protocol: ``auto`` takes the new one (KIP-848) where the broker has it."""
    session_timeout_ms: int = 6_000
    """Classic protocol: how long a silent member keeps its partitions. In the new protocol the broker decides."""
    request_timeout: float = 5.0
    """Seconds that a blocking question to the broker may take."""
    close_timeout: float = 5.0
    """Seconds that ``close`` waits for acknowledgements."""


class _Announced:
    """An ``Ownership`` that lets the log know of an assignment before the coordinator does."""

    def __init__(self, ownership: Ownership, heard_assigned: Callable[[], None]) -> None:
        self._heard_assigned = heard_assigned
        self._assigned = ownership.assigned
        self.revoked = ownership.revoked
        self.lost = ownership.lost

    def assigned(self, partitions: frozenset[int]) -> None:
        self._heard_assigned()
        self._assigned(partitions)


class KafkaLog:
    """Kafka as the coordinator needs it. One thread uses it, except ``healthy``, ``problem`` and the cached answers.

    Delivery: at least once in both directions. No error of the driver leaves it: outages are LogUnavailable, after
    which the next call goes on.
    """

    def __init__(self, config: KafkaLogConfig) -> None:
        """Start the producer and the watch; the group is joined by ``subscribe``. Raises InvalidConfig."""
        self._config = config
        self._topics = config.topics
        self._admin = open_admin(config.bootstrap, config.options)
        self._producer = RecordProducer(self._make_producer)
        self._watch = ClusterWatch(self._admin, config.bootstrap, config.topics)
        self._watch.start()
        self._member: group.GroupMember | None = None
        self._offsets = OffsetQuestions(self._admin, config.topics, config.request_timeout)
        self._groups = GroupOffsets(self._make_reader)
        self._gaps: list[Gap] = []
        self._outdated = False
        self._noticed: Mapping[str, TopicState] = {}
        self._inbound_ids: dict[Inbound, str] = {}

    # -- group and records ---------------------------------------------------------------------

    def subscribe(self, ownership: Ownership) -> None:
        """Join the group. Raises TopicsNotReady, LogUnavailable, InvalidConfig."""
        known = self._watch.states(self._config.request_timeout)
        inbound = [self._topics.inbound(short) for short in INBOUND]
        if not known.keys() >= set(inbound):
            # They may have been created a moment ago.
            known = self._watch.states(self._config.request_timeout, anew=True)
        if away := [unseen(name, self._watch.hidden) for name in inbound if name not in known]:
            raise TopicsNotReady("; ".join(away))
        protocols: tuple[group.Protocol, ...] = (
            ("consumer", "classic") if self._config.protocol == "auto" else (self._config.protocol,)
        )
        joining = group.Joining(self._topics, self._make_consumer, protocols)
        self._member = group.GroupMember(joining, _Announced(ownership, self._heard_assigned))

    def poll(self, timeout: float, limit: int) -> list[Received]:
        """Wait at most ``timeout`` seconds for the first record, then take what is there, at most ``limit``.

        Serves rebalances, delivery reports and lost ranges on the way. Raises LogUnavailable when no broker can be
        reached; the next call goes on from there.
        """
        self._producer.serve()
        if self._member is None:
            self._producer.serve(timeout)
            return []
        self._notice_renewed(self._member)
        self._gaps += self._offsets.mend(self._member.positions)
        records = self._member.poll(timeout, limit)
        with contextlib.suppress(LogUnavailable):  # with records in hand: it is raised by the next call
            self._producer.serve()
        return records

    def still_member(self) -> bool:
        """Whether the group's broker confirms our membership now (blocking, two seconds at most)."""
        return self._member is not None and self._member.confirmed()

    def seek(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Read a partition from these offsets on (``UNREAD``: the earliest record). Raises OwnershipLost if not ours."""
        member = self._group()
        if partition not in member.whole:
            raise OwnershipLost(frozenset({partition}))
        if self._outdated:
            with contextlib.suppress(LogUnavailable):
                self._states()
        self._notice_renewed(member)
        member.positions.seek(partition, self._earliest(partition, offsets))

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now; those that are not ours are passed over."""
        self._group().positions.pause(self._group().whole & frozenset(partitions))

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them, each where it stood."""
        self._group().positions.resume(partitions)

    def store_offsets(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Commit these to Kafka, at most once a second, for lag tools only (best effort)."""
        member = self._group()
        for topic, offset in offsets.items():
            if offset != UNREAD:
                member.store((topic, partition), offset)

    def reached_end(self, partition: int, topic: Inbound) -> int:
        """The position at which the consumer last hit the end of that log, ``UNREAD`` before that."""
        return UNREAD if self._member is None else self._member.positions.end((topic, partition))

    def gaps(self) -> list[Gap]:
        """Ranges found lost since the last call; reading has gone on behind them already (protocol 9)."""
        gaps, self._gaps = self._gaps, []
        return gaps

    @property
    def protocol(self) -> str:
        """The group protocol in use: ``consumer``, ``classic``, or empty before ``subscribe``."""
        return "" if self._member is None else self._member.protocol

    # -- producing -----------------------------------------------------------------------------

    def produce(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        """Hand records to the producer; ``acknowledged`` hears once, from a later ``poll``, ``flush`` or ``close``."""
        self._producer.produce(records, acknowledged)

    def flush(self, timeout: float) -> int:
        """Wait for outstanding acknowledgements; returns how many records are still open."""
        return self._producer.flush(timeout)

    # -- questions to the broker ---------------------------------------------------------------

    def end_offsets(self, partition: int) -> dict[Inbound, int]:
        """The stable end of each inbound topic's partition: no open transaction is before it. Raises LogUnavailable."""
        return self._ask(partition, "end")

    def written_ends(self, partitions: Iterable[int]) -> dict[tuple[Inbound, int], int]:
        """The end of all that is written to the inbound topics, open transactions included. Raises LogUnavailable."""
        places = [(topic, partition) for partition in partitions for topic in INBOUND]
        return self._offsets.ask(places, "written end") if places else {}

    def start_offsets(self, partition: int) -> dict[Inbound, int]:
        """The earliest offset still kept of each inbound topic's partition. Raises LogUnavailable."""
        return self._ask(partition, "start")

    def topic_ids(self) -> dict[str, str]:
        """Ids by full name of all topics of the namespace, a few seconds old. Raises LogUnavailable.

        The first answer after an assignment is no older than that: topics that were deleted and re-created are
        assigned anew, and must not be taken for the old ones.
        """
        return {name: state.id for name, state in self._states().items()}

    def partition_counts(self) -> dict[str, int]:
        """Partition counts by full name of all topics of the namespace, a few seconds old. Raises LogUnavailable."""
        return {name: state.partitions for name, state in self._states().items()}

    def hidden_topics(self) -> frozenset[str]:
        """Full names of topics that may not be described by us: whether they are there is not known."""
        return self._watch.hidden

    def ask_tasks(self) -> Callable[[], Mapping[TaskPlace, TaskStand] | None]:
        """Ask where the task topics stand, without waiting; what is returned gives the answer, None until it is there."""
        counts = {name: state.partitions for name, state in self._watch.latest.items()}
        return ask_stands(self._admin, self._groups, self._topics, counts, self._config.request_timeout)

    def look_again(self) -> None:
        """Ask for the topics anew, soon (a queue of which nothing is known, an unknown topic)."""
        self._watch.look_again()

    def healthy(self) -> bool:
        """Whether the broker answered within the last seconds, also when idle. Any thread may ask."""
        return self._watch.healthy()

    def problem(self) -> str:
        """What was wrong with the last question to the broker, empty if nothing was. Any thread may ask."""
        return self._watch.problem()

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held), wait for acknowledgements, stop the threads."""
        member, self._member = self._member, None
        try:
            if member is not None:
                member.close()
        finally:
            self._producer.close(self._config.close_timeout)
            self._watch.close()
            self._groups.close()

    # -- inside --------------------------------------------------------------------------------

    def _group(self) -> group.GroupMember:
        if self._member is None:
            raise LogUnavailable("the group was not joined")
        return self._member

    def _notice_renewed(self, member: group.GroupMember) -> None:
        """A topic with another id is another log, even where the old position exists in it: no silent jump."""
        states = self._watch.latest
        if states is self._noticed:
            return
        self._noticed = states
        for topic in INBOUND:
            state = states.get(self._topics.inbound(topic))
            if state is None:
                continue
            if self._inbound_ids.get(topic, state.id) != state.id:
                member.positions.renew(topic)
            self._inbound_ids[topic] = state.id

    def _heard_assigned(self) -> None:
        self._outdated = True

    def _states(self) -> Mapping[str, TopicState]:
        states = self._watch.states(self._config.request_timeout, anew=self._outdated)
        self._outdated = False
        return states

    def _earliest(self, partition: int, offsets: Mapping[Inbound, int]) -> Mapping[Inbound, int]:
        """Offsets with ``UNREAD`` resolved: the client takes half a second longer to start at a logical one."""
        unread = [(topic, partition) for topic, offset in offsets.items() if offset == UNREAD]
        if not unread:
            return offsets
        try:
            starts = self._offsets.ask(unread, "start")
        except LogUnavailable:
            return offsets
        return {**offsets, **{topic: start for (topic, _), start in starts.items()}}

    def _ask(self, partition: int, which: Literal["start", "end"]) -> dict[Inbound, int]:
        answers = self._offsets.ask([(topic, partition) for topic in INBOUND], which)
        return {topic: offset for (topic, _), offset in answers.items()}

    def _make_producer(self, heard: Callable[[KafkaError], None]) -> Producer:
        options = client_options("producer", self._config.bootstrap, self._config.options)
        return open_client(HeardProducer, options | {"error_cb": heard})

    def _make_reader(self, group_id: str) -> Consumer:
        """One that asks about a group and never joins it."""
        own = {"group_id": group_id, "auto_offset_reset": "latest"}
        options = client_options("consumer", self._config.bootstrap, self._config.options, **own)
        return open_client(Consumer, options)

    def _make_consumer(self, protocol: group.Protocol, heard: Callable[[KafkaError], None]) -> Consumer:
        config = self._config
        own: dict[str, Any] = {
            "group_id": config.topics.coordinator_group,
            "group_instance_id": config.instance_id,
            "group_protocol": protocol,
            "enable_partition_eof": True,
        }
        if protocol == "consumer":
            own["group_remote_assignor"] = "range"
            refused = ("session.timeout.ms", "heartbeat.interval.ms")
            user = {name: value for name, value in config.options.items() if name not in refused}
        else:
            own["partition_assignment_strategy"] = "range"
            user = {"session.timeout.ms": config.session_timeout_ms, "heartbeat.interval.ms": 1_000, **config.options}
        options = client_options("consumer", config.bootstrap, user, **own)
        return open_client(Consumer, options | {"error_cb": heard})
