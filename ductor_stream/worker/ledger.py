"""The ledger of one queue: a window for each partition that is ours, and what is under way in it.

Results are acknowledged in the producer's thread while tasks are taken in the queue's own: this is where
both meet, under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from ductor_stream.ports import TaskPosition
from ductor_stream.worker.window import Window


class Place(NamedTuple):
    """One record: its partition, its offset, and the window that counts it (another one after every assignment)."""

    partition: int
    offset: int
    window: Window


class UnderWay(Protocol):
    """What happens about a place until it is done."""

    @property
    def runs(self) -> bool:
        """Whether an attempt still runs; else its result, or a dead letter, is on its way to the broker."""

    @property
    def passes(self) -> bool:
        """Whether it runs and need not come again, since its owner hears of its death: the broker has a heartbeat."""

    @property
    def awaits(self) -> bool:
        """Whether something of it is on its way to the broker."""


class Ledger:
    """Positions of one queue. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._windows: dict[int, Window | None] = {}
        self._under_way: dict[Place, UnderWay] = {}
        self._dirty: set[int] = set()

    # -- partitions -------------------------------------------------------------------------

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that are ours."""
        return frozenset(self._windows)

    def open(self, partition: int, position: TaskPosition) -> None:
        """A partition is ours from this position on."""
        with self._lock:
            # Without a committed offset reading begins at the earliest record, which only its arrival tells.
            opened = None if position.offset is None else Window.opened(position.offset, position.metadata)
            self._windows[partition] = opened

    def drop(self, partitions: Iterable[int]) -> None:
        """These partitions are ours no more; what still runs of them is no longer counted."""
        with self._lock:
            for partition in partitions:
                window = self._windows.pop(partition, None)
                self._dirty.discard(partition)
                for place in [each for each in self._under_way if each.window is window]:
                    del self._under_way[place]

    # -- records ----------------------------------------------------------------------------

    def look(self, partition: int, offset: int) -> Literal["new", "done", "full"]:
        """Whether the record may be taken, was done before (on another worker, or here), or has to wait for room."""
        with self._lock:
            window = self._window(partition, offset)
            if window.is_done(offset):
                return "done"
            return "new" if window.has_room() else "full"

    def losses(self, partition: int, offset: int) -> int:
        """How many workers were lost under this record."""
        window = self._windows.get(partition)
        return 0 if window is None else window.losses_under(offset)

    def forgive(self, partition: int, offset: int) -> None:
        """This worker runs the record and has lived all the time: it was counted as one that was lost."""
        with self._lock:
            window = self._windows.get(partition)
            if window is not None:
                window.forgive(offset)

    def has_room(self, partition: int) -> bool:
        """Whether one more may be taken of the partition (protocol 27)."""
        with self._lock:
            window = self._windows.get(partition)
            return window is None or window.has_room()

    def take(self, partition: int, offset: int) -> Place:
        """Count the record as taken. Records of a partition must be taken in their order, without leaving one out."""
        with self._lock:
            window = self._window(partition, offset)
            window.take(offset)
            self._dirty.add(partition)
            return Place(partition, offset, window)

    def begin(self, place: Place, under_way: UnderWay) -> None:
        """Something is under way about the place, until ``done``."""
        with self._lock:
            self._under_way[place] = under_way

    def begin_all(self, under_way: Iterable[tuple[Place, UnderWay]]) -> None:
        """``begin`` for a batch."""
        with self._lock:
            self._under_way.update(under_way)

    def done(self, place: Place) -> None:
        """The broker has the place's result, or its dead letter."""
        with self._lock:
            place.window.finish(place.offset)
            self._under_way.pop(place, None)
            if self._windows.get(place.partition) is place.window:
                self._dirty.add(place.partition)
            if self._waiting:
                self._changed.notify_all()

    def is_done(self, place: Place) -> bool:
        """Whether the broker has the place's result, or its dead letter."""
        with self._lock:
            return place.window.is_done(place.offset)

    def notice(self) -> None:
        """Something about what is under way has changed."""
        with self._lock:
            if self._waiting:
                self._changed.notify_all()

    # -- what is under way ------------------------------------------------------------------

    @property
    def open_places(self) -> int:
        """How many places are taken and not done."""
        return len(self._under_way)

    def running(self, partitions: frozenset[int]) -> list[UnderWay]:
        """What still runs of these partitions."""
        with self._lock:
            return [each for place, each in self._under_way.items() if place.partition in partitions and each.runs]

    def wait_reported(self, partitions: frozenset[int], timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until the broker has what was sent about these partitions' attempts."""

        def all_there() -> bool:
            return not any(each.awaits for place, each in self._under_way.items() if place.partition in partitions)

        with self._lock:
            self._waiting += 1
            try:
                return self._changed.wait_for(all_there, timeout)
            finally:
                self._waiting -= 1

    # -- commits ----------------------------------------------------------------------------

    def due(self, partitions: Iterable[int] | None = None, *, handed_over: bool = False) -> dict[int, TaskPosition]:
        """What has changed since the last call, to be committed; only of these partitions where some are named."""
        with self._lock:
            changed = self._dirty if partitions is None else self._dirty.intersection(partitions)
            self._dirty = self._dirty - changed
            found = {partition: self._windows.get(partition) for partition in changed}
            return {p: _position(window, handed_over=handed_over) for p, window in found.items() if window is not None}

    def passing(self, partitions: frozenset[int]) -> dict[int, TaskPosition]:
        """Positions past what still runs here, for partitions that go to others while it goes on running.

        Not past an attempt of which nobody has heard: should this process die, nobody would miss it.
        """
        with self._lock:
            found: dict[int, TaskPosition] = {}
            for partition in partitions:
                window = self._windows.get(partition)
                if window is not None:
                    kept = [p.offset for p, each in self._under_way.items() if p.window is window and each.passes]
                    found[partition] = _position(window.passing(kept), handed_over=True)
            return found

    def touch(self, partitions: Iterable[int]) -> None:
        """Commit these again: the last commit of them failed."""
        with self._lock:
            self._dirty.update(partitions)

    def _window(self, partition: int, offset: int) -> Window:
        window = self._windows.get(partition)
        if window is None or window.is_rewind(offset):
            # The first record of all; or the log began anew, and what was done in its former life says nothing.
            window = self._windows[partition] = Window(offset)
        return window


def _position(window: Window, *, handed_over: bool) -> TaskPosition:
    return TaskPosition(window.base, window.metadata(handed_over=handed_over))
