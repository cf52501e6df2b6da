"""The consumer of the three inbound topics: positions, pauses, ends and lost ranges. No group in here (see group.py).

Every record that leaves here belongs to a partition that was ``seek``-ed since it was assigned, and was fetched
after that seek.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from ductor_stream.kafka.membership import Place
from ductor_stream.ports import UNREAD, Inbound, Received
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.inbound")

SEEK_TRIES = 20
"""How often a seek may be refused (the client has not started on the partition yet) before it is assigned anew."""

ACCEPTED = -1
"""Instead of a number of tries: the client has taken the seek."""

WAKE_SECONDS = 1.0
"""How long the question may take that wakes the client's threads: longer than a fetch waits (half a second)."""

PARKED_AT = 0
"""The position at which an assigned partition waits, paused, for its seek: absolute, so that the client asks nobody."""


class Positions:
    """Where each assigned place is read, over one client.

    ``incremental`` says how assignments are changed: by difference (new protocol) or as a whole (classic ``range``).
    """

    def __init__(self, client: Consumer, topics: Topics, *, incremental: bool) -> None:
        self._client = client
        self._topics = topics
        self._incremental = incremental
        self._next: dict[Place, int] = {}
        """Assigned places that were sought: the offset of the next record to hand out."""
        self._assigned: set[Place] = set()
        self._wanted: dict[Place, int] = {}
        """Seeks under way: the tries so far, or ``ACCEPTED`` by the client. They are resumed when all are accepted."""
        self._paused: set[int] = set()
        self._moved: set[Place] = set()
        self._ends: dict[Place, int] = {}
        self.out_of_range: set[Place] = set()
        """Places whose position the broker does not have; nothing is handed out of them until ``restart``."""
        self.renewed: set[Place] = set()
        """Those of them whose topic is another one now, so that the position means nothing."""

    # -- assignment (called in rebalances) -----------------------------------------------------

    def assign(self, places: Iterable[Place]) -> None:
        """Take up places, paused: nothing of them is handed out before ``seek``."""
        added = set(places)
        self._forget(added)
        self._assigned |= added
        parked = [self._at(place, PARKED_AT) for place in added]
        if self._incremental:
            self._client.incremental_assign(parked)
        else:
            self._client.assign(parked)
        self._client.pause(parked)

    def unassign(self, places: Iterable[Place]) -> None:
        """Let go of places; what was fetched of them is dropped."""
        gone = set(places) & self._assigned
        self._forget(gone)
        self._assigned -= gone
        self._paused -= {partition for _, partition in gone}
        if self._incremental:
            self._client.incremental_unassign([self._at(place, PARKED_AT) for place in gone])
        else:
            self._client.unassign()

    # -- positions -----------------------------------------------------------------------------

    def seek(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Read these topics of the partition from these offsets on, whatever was fetched before.

        It is done by the next ``settle``, and all that were sought begin together: were they resumed one by one, the
        first would begin a fetch alone, and the rest would wait until the broker has answered that.
        """
        for topic, offset in offsets.items():
            place = (topic, partition)
            self._forget({place})
            self._next[place] = offset
            self._wanted[place] = 0

    def settle(self) -> bool:
        """Carry out the seeks that are open; returns whether some still are, because the client refused them."""
        if not self._wanted:
            return False
        for place in [each for each, tries in self._wanted.items() if tries != ACCEPTED]:
            try:
                self._client.seek(self._at(place, self._next[place]))
                self._wanted[place] = ACCEPTED
            except KafkaException as error:
                self._wanted[place] += 1
                if self._wanted[place] > SEEK_TRIES:
                    logger.warning("seek of %s refused, assigning it anew: %s", place, error)
                    self.restart(place, self._next[place])
                    return True
        if any(tries != ACCEPTED for tries in self._wanted.values()):
            return True
        accepted = list(self._wanted)
        self._wanted.clear()
        self._unpause(accepted)
        return False

    def restart(self, place: Place, offset: int) -> None:
        """Assign a place anew at an offset: the way back for one that the client has stopped on.

        Where the client refuses (it is about to be replaced), the place counts as out of range, to be tried again.
        """
        self._forget({place})
        self._next[place] = offset
        try:
            self._assign_anew(place)
        except KafkaException as error:
            logger.warning("%s could not be assigned anew: %s", place, error)
            self.out_of_range.add(place)
            return
        # What must not be read does not survive the new assignment.
        resting = [each for each in self._assigned if each not in self._next or each[1] in self._paused]
        if resting:
            self._client.pause([self._at(each, PARKED_AT) for each in resting])
        # And a pause from before the seek does: what is to be read is said.
        anew = [place] if self._incremental else self._assigned
        self._unpause([each for each in anew if each in self._next])

    def _assign_anew(self, place: Place) -> None:
        if self._incremental:
            with contextlib.suppress(KafkaException):
                self._client.incremental_unassign([self._at(place, PARKED_AT)])
            self._client.incremental_assign([self._at(place, self._next[place])])
            return
        # A whole assignment starts all of them again, each where its reader stands: prefetched records are lost, and
        # so are the seeks that the client had still to accept.
        self._moved |= self._assigned
        self._wanted.clear()
        self._client.assign([self._at(each, self._next.get(each, PARKED_AT)) for each in self._assigned])

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop handing out records of these partitions; they are fetched anew after ``resume``."""
        fresh = set(partitions) - self._paused
        self._paused |= fresh
        places = [place for place in self._assigned if place[1] in fresh and place in self._next]
        if places:
            # What the client holds of them is dropped by this, and fetched again from where it stood.
            self._client.pause([self._at(place, PARKED_AT) for place in places])

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on with these partitions."""
        back = set(partitions) & self._paused
        self._paused -= back
        self._unpause(
            place for place in self._assigned if place[1] in back and place in self._next and place not in self._wanted
        )

    def renew(self, topic: Inbound) -> None:
        """The topic was deleted and created anew: nothing more is handed out of it before ``restart``."""
        places = {place for place in self._next if place[0] == topic}
        self.out_of_range |= places
        self.renewed |= places

    def position(self, place: Place) -> int:
        """The offset of the next record to hand out (``UNREAD``: the earliest one)."""
        return self._next.get(place, UNREAD)

    def end(self, place: Place) -> int:
        """The position at which the end was last hit since the last seek, else ``UNREAD``."""
        return self._ends.get(place, UNREAD)

    # -- records -------------------------------------------------------------------------------

    def begin(self) -> None:
        """A poll begins: from here on a move of a position makes what is in hand stale."""
        self._moved.clear()

    def accept(self, message: Message) -> Received | None:
        """The record, or None when it is no record or not one to be handed out."""
        topic = self._topics.short(message.topic() or "")
        partition = message.partition()
        if topic is None or partition is None:
            return None
        place = (topic, partition)
        if place not in self._next or place in self._moved or place in self.out_of_range:
            return None
        if self._wanted.get(place, ACCEPTED) != ACCEPTED:
            return None
        offset = message.offset() or 0
        error = message.error()
        if error is not None:
            self._heard(place, offset, error)
            return None
        self._next[place] = offset + 1
        headers: Any = message.headers() or ()
        return Received(topic, partition, offset, message.key(), message.value(), headers)

    def _heard(self, place: Place, offset: int, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends[place] = offset
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.out_of_range.add(place)
        else:
            logger.warning("reading %s: %s", place, error.str())

    # -- inside --------------------------------------------------------------------------------

    def _forget(self, places: set[Place]) -> None:
        """What was known of these places is void, and what is in hand of them is stale."""
        self._moved |= places
        self.out_of_range -= places
        self.renewed -= places
        for place in places:
            self._next.pop(place, None)
            self._wanted.pop(place, None)
            self._ends.pop(place, None)

    def _unpause(self, places: Iterable[Place]) -> None:
        going = [place for place in places if place[1] not in self._paused]
        if not going:
            return
        asleep = not any(place[1] not in self._paused for place in self._next.keys() - self._wanted.keys() - set(going))
        self._client.resume([self._at(place, PARKED_AT) for place in going])
        if asleep:
            self._wake(going)

    def _wake(self, places: Iterable[Place]) -> None:
        """Rouse the client's threads: while all is paused they sleep up to a second, and a resume does not end that.

        Any question to the leaders does. It is asked only when nothing was being read, since a question waits on
        its connection behind a fetch that waits for records.
        """
        with contextlib.suppress(KafkaException):
            self._client.offsets_for_times([self._at(place, UNREAD) for place in places], WAKE_SECONDS)

    def _at(self, place: Place, offset: int) -> TopicPartition:
        return TopicPartition(
            self._topics.inbound(place[0]), place[1], OFFSET_BEGINNING if offset == UNREAD else offset
        )
