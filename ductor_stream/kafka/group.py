"""The coordinator's place in its consumer group: joining by the best protocol, rebalances, fatal errors, leaving.

Membership only says whom to wake; who may commit is decided by epoch and token in Postgres.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ductor_stream.errors import InvalidConfig, LogUnavailable
from ductor_stream.kafka.bounded import CLOSE_SECONDS, GivenUp, within
from ductor_stream.kafka.inbound import Positions
from ductor_stream.kafka.membership import Membership, Place
from ductor_stream.kafka.options import EVICTED, Evictions, evicted, in_words, is_fatal
from ductor_stream.kafka.repeats import REPEATS
from ductor_stream.ports import INBOUND, Ownership, Received
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.group")
logger.addFilter(REPEATS)  # what a client hears of its connections comes many times a second

Protocol = Literal["consumer", "classic"]

NO_NEW_PROTOCOL = tuple(
    KafkaError(code).str()
    for code in (
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_ASSIGNOR,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    )
)
"""What a broker says that lacks KIP-848, its `range` assignor, or may not convert a group with classic members.

Texts, since the client reports every fatal error of a consumer under one and the same code.
"""

NAME_STILL_TAKEN = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str()
"""A process was killed and comes back under its stable name before its session has ended.

The new protocol makes it wait for that (up to 45 s by the broker's defaults), and its partitions move to others and
back. A member that joins by the classic protocol takes the old one's place at once, in a group of either kind.
"""

COMMIT_SECONDS = 1.0
"""Between two commits of offsets to Kafka; they are for lag tools, which look every few seconds."""

CONFIRM_SECONDS = 2.0
"""How long the group's broker may take to say that we are its member: milliseconds, where all is well."""

SETTLE_SECONDS = 0.01
"""How long to wait for records while the client has still to accept a seek."""

LOOK_SECONDS = 0.05
"""A wait for records is cut into pieces of this length: what the group gives by it is told of at once, not at its end."""

FIRST_REJOIN_SECONDS, LONGEST_REJOIN_SECONDS = 0.2, 2.0
"""Pause before a new consumer after a fatal error: doubled from the first to the longest, and then kept."""


class Joining(msgspec.Struct, frozen=True):
    """How to join: ``make`` builds a client for a protocol, given the callback that hears its errors."""

    topics: Topics
    make: Callable[[Protocol, Callable[[KafkaError], None]], Consumer]
    protocols: tuple[Protocol, ...]
    """In order of preference."""


class GroupMember:
    """A member of the coordinators' group that outlives its clients: after a fatal error it joins with a new one.

    One thread uses this. ``ownership`` hears of whole partitions only: ``assigned`` and ``lost`` after the records
    of the poll were looked through, ``revoked`` while the group waits for us.
    """

    def __init__(self, joining: Joining, ownership: Ownership) -> None:
        self._joining = joining
        self._topics = joining.topics
        self._ownership = ownership
        self._protocols = list(joining.protocols)
        self._told: list[tuple[str, frozenset[int]]] = []
        self._raised: list[BaseException] = []
        self._stored: dict[Place, int] = {}
        self._commit_at = 0.0
        self._rejoin_seconds = FIRST_REJOIN_SECONDS
        self._rejoin_at: float | None = None
        self._down = ""
        self._fatal = ""
        self._evictions = Evictions()
        self._number = 0  # of the client: what a former one still says is no news
        self._given_up: list[Consumer] = []
        """Clients that did not close in time: what they call back with is of no interest any more."""
        self._asked: Consumer | None = None
        """Who was asked to confirm us and has not come back yet: one call at a time is enough of them."""
        self._join()
        atexit.register(self._abandon)

    @property
    def protocol(self) -> Protocol:
        """The group protocol in use."""
        return self._protocols[0]

    @property
    def whole(self) -> frozenset[int]:
        """The partitions that are ours, in all inbound topics."""
        return self._membership.whole

    # -- reading -------------------------------------------------------------------------------

    def poll(self, timeout: float, limit: int) -> list[Received]:
        """Records of sought partitions, at most ``limit``. Raises LogUnavailable when no broker can be reached."""
        self._commit_stored()
        self._raise()
        if self._rejoin_at is not None and not self._try_rejoin(timeout):
            return []
        if self.positions.settle():
            timeout = min(timeout, SETTLE_SECONDS)
        self.positions.begin()
        messages = self._collect(timeout, limit)
        self._tell()
        records = [record for message in messages if (record := self.positions.accept(message)) is not None]
        if records:
            # They go first: read already, they would be lost with what is raised. That is kept for the next call.
            self._down = ""
            self._rejoin_seconds = FIRST_REJOIN_SECONDS
            return records
        self._raise()
        if self._down:
            reason, self._down = self._down, ""
            raise LogUnavailable(f"no Kafka broker can be reached: {reason}")
        return records

    def _collect(self, timeout: float, limit: int) -> list[Message]:
        """Messages of one poll; rebalances run in here."""
        messages: list[Message] = []
        try:
            first = self._first(timeout)
            if first is not None:
                messages.append(first)
                if limit > 1:
                    messages += self._client.consume(limit - 1, 0)
        except KafkaException as error:
            self._heard_error(error.args[0])
        for message in messages:
            problem = message.error()
            if problem is not None and (is_fatal(problem) or message.topic() is None):
                self._heard_error(problem)
        if self._fatal:
            self._begin_anew(self._fatal)
            return []
        return messages

    def _first(self, timeout: float) -> Message | None:
        """The next message, or None when the time is up or something is to be told."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            message = self._client.poll(max(0.0, min(left, LOOK_SECONDS)))
            if message is not None or left <= LOOK_SECONDS or self._told or self._raised or self._fatal:
                return message

    def _tell(self) -> None:
        """What happened in the callbacks and may be told outside of them."""
        while self._told:
            what, partitions = self._told.pop(0)
            if what == "lost":
                self._ownership.lost(partitions)
            elif still := partitions & self._membership.whole:
                self._ownership.assigned(still)

    def _raise(self) -> None:
        """Raise what was raised in the callbacks."""
        if self._raised:
            [first, *_], self._raised = self._raised, []
            if isinstance(first, KafkaException):
                raise LogUnavailable(f"a rebalance could not be followed: {first}") from first
            raise first

    def confirmed(self) -> bool:
        """Whether the group's broker takes a commit of us now: it refuses one that it has expelled, whatever we believe.

        The one request that says so and can be made at any time; a client whose threads sleep makes none in time.
        """
        client, held = self._client, self._membership.held
        if not held or self._rejoin_at is not None or self._asked is client:
            return False
        self._asked = client
        # One that was sought, if any was: where it stands is where lag tools are told that it stands.
        place = max(sorted(held), key=self.positions.position)
        at = TopicPartition(self._topics.inbound(place[0]), place[1], self.positions.position(place))
        try:
            told = within(CONFIRM_SECONDS, lambda: self._ask(client, at))
        except (KafkaException, GivenUp) as error:
            logger.warning("the group does not confirm us: %s", error)
            return False
        return all(each.error is None for each in told or ())

    def _ask(self, client: Consumer, at: TopicPartition) -> list[TopicPartition] | None:
        """Commit this offset, or what is committed there already (0 where nothing is) when the place was not sought yet."""
        try:
            if at.offset < 0:
                [found] = client.committed([at], CONFIRM_SECONDS)
                at.offset = max(0, found.offset)
            return client.commit(offsets=[at], asynchronous=False)
        finally:
            if self._asked is client:
                self._asked = None

    # -- offsets for lag tools -----------------------------------------------------------------

    def store(self, place: Place, offset: int) -> None:
        """Commit this offset to Kafka with the next commit (best effort)."""
        self._stored[place] = offset

    def _commit_stored(self) -> None:
        now = time.monotonic()
        if not self._stored or now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        self._commit()

    def _commit(self) -> None:
        held = self._membership.held
        offsets = [
            TopicPartition(self._topics.inbound(topic), partition, offset)
            for (topic, partition), offset in self._stored.items()
            if (topic, partition) in held
        ]
        self._stored.clear()
        if offsets:
            try:
                self._client.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                logger.debug("offsets were not committed to Kafka: %s", error)

    # -- rebalances (called by the client from within poll and close) ----------------------------

    def _assigned(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if client in self._given_up:
            return
        places = self._places(partitions)
        self._shielded(lambda: self.positions.assign(places))
        whole = self._membership.give(places)
        self._rejoin_seconds = FIRST_REJOIN_SECONDS
        logger.info("assigned %s, whole now: %s", sorted(places), sorted(whole))
        if whole:
            self._told.append(("assigned", whole))

    def _revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if client in self._given_up:
            return
        places = self._places(partitions)
        broken = self._broken(places)
        logger.info("revoked %s, whole until now: %s", sorted(places), sorted(broken))
        if broken:
            self._shielded(lambda: self._ownership.revoked(broken))
        self._commit()
        self._shielded(lambda: self.positions.unassign(places))
        self._membership.take(places)

    def _lost(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if client in self._given_up:
            return
        places = self._places(partitions)
        broken = self._broken(places)
        logger.warning("lost %s, whole until now: %s", sorted(places), sorted(broken))
        self._shielded(lambda: self.positions.unassign(places))
        self._membership.take(places)
        if broken:
            self._told.append(("lost", broken))

    def _broken(self, places: Iterable[Place]) -> frozenset[int]:
        """Whole partitions that end with these places, less those of which the owner has not heard yet."""
        whole = self._membership.whole & {partition for _, partition in places}
        unheard: frozenset[int] = frozenset()
        for index, (what, partitions) in enumerate(self._told):
            if what == "assigned":
                unheard |= partitions & whole
                self._told[index] = (what, partitions - whole)
        return whole - unheard

    def _shielded(self, call: Callable[[], Any]) -> None:
        """What is raised in a callback would leave the client in between: it is raised from ``poll`` afterwards."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again from poll, whatever it is
            self._raised.append(error)

    def _places(self, partitions: Iterable[TopicPartition]) -> list[Place]:
        named = [(self._topics.short(each.topic), each.partition) for each in partitions]
        return [(topic, partition) for topic, partition in named if topic is not None]

    # -- joining, and joining again --------------------------------------------------------------

    def _join(self) -> None:
        self._membership = Membership()
        self._fatal = ""
        self._number = number = self._number + 1

        def heard(error: KafkaError) -> None:
            if number == self._number:
                self._heard_error(error)

        self._client = self._joining.make(self.protocol, heard)
        self.positions = Positions(self._client, self._topics, incremental=self.protocol == "consumer")
        self._client.subscribe(
            [self._topics.inbound(short) for short in INBOUND],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        logger.info("joining group %s by the %s protocol", self._topics.coordinator_group, self.protocol)

    def _heard_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._fatal = error.str()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = error.str()
        else:
            logger.warning("consumer: %s", in_words(error))

    def _begin_anew(self, error: str) -> None:
        """A fatal error ends the client: what it held is lost, and another one joins after a pause.

        Raises InvalidConfig where another would help nobody.
        """
        lost = self._broken(self._membership.held)
        self._membership.take(self._membership.held)
        self._told = [each for each in self._told if each[0] == "lost"]
        if lost:
            self._told.append(("lost", lost))
        self._close_client()
        self._rejoin_at = time.monotonic()
        if EVICTED in error and self._evictions.again():
            raise InvalidConfig(evicted(self._topics.coordinator_group))
        missing = any(text in error for text in NO_NEW_PROTOCOL)
        if self.protocol == "consumer" and (missing or NAME_STILL_TAKEN in error) and len(self._protocols) > 1:
            logger.warning("not by the new protocol, going on by the classic one: %s", error)
            del self._protocols[0]
            return
        logger.error("fatal consumer error, joining again in %.1f s: %s", self._rejoin_seconds, error)
        self._rejoin_at += self._rejoin_seconds
        self._rejoin_seconds = min(self._rejoin_seconds * 2, LONGEST_REJOIN_SECONDS)
        if missing:
            raise InvalidConfig(f"protocol is {self.protocol}, but the broker answers: {error}")

    def _try_rejoin(self, timeout: float) -> bool:
        """Join again when the pause is over; waits for that at most ``timeout`` seconds."""
        wait = (self._rejoin_at or 0.0) - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout))
        if wait > timeout:
            return False
        self._rejoin_at = None
        self._join()
        return True

    def _close_client(self) -> None:
        try:
            within(CLOSE_SECONDS, self._client.close)
        except GivenUp as error:
            self._given_up.append(self._client)
            logger.warning("the group is not left in good order, its broker does not answer: %s", error)
        except (KafkaException, RuntimeError) as error:
            logger.warning("closing the consumer: %s", error)

    def close(self) -> None:
        """Leave the group; ``ownership.revoked`` hears of what we held. Takes ``CLOSE_SECONDS`` at most."""
        atexit.unregister(self._abandon)
        if self._rejoin_at is None:
            self._commit()
            self._close_client()
        self._tell()

    def _abandon(self) -> None:
        """The process ends without ``close``: a client that is still a member would hang in its destructor for ever."""
        self._ownership = _Nobody()
        self.close()


class _Nobody:
    """The ``Ownership`` of a process that is ending."""

    def assigned(self, partitions: frozenset[int]) -> None: ...
    def revoked(self, partitions: frozenset[int]) -> None: ...
    def lost(self, partitions: frozenset[int]) -> None: ...
