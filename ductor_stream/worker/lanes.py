"""The lanes of a worker: one that takes new work, and those that a step has blocked until they are free again."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ductor_stream.errors import InvariantViolation
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.worker.lane import Lane, Work
from ductor_stream.worker.steps import RegisteredStep, Resource

_log = get_logger(__name__)

BLOCKED_S = 10.0
"""An event loop that does not answer for so long is blocked by a step; new work goes elsewhere. Calls that merely
should have been asynchronous take seconds, not this."""

CLOSE_S = 10.0
"""How long resources may take to close at the end."""

_PYTHON = str(Path(threading.__file__).parent)

MOST_LANES = 8
"""Blocked loops are threads that cannot be ended: a step that blocks one after another must not fill the machine."""


class Lanes:
    """Opens the lane that is used now, and another one when it is blocked."""

    def __init__(self, steps: Iterable[RegisteredStep], rest: Callable[[], None]) -> None:
        self._rest = rest
        self._resources: Mapping[str, Resource] = {r.name: r for step in steps for r in step.resources.values()}
        self._blocked: list[Lane] = []
        self._replacing = False
        self._problem = ""
        self._current: Lane | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._apart: list[threading.Thread] = []

    @property
    def opened(self) -> bool:
        """Whether the resources are open."""
        return self._current is not None

    @property
    def current(self) -> Lane:
        """The lane for new work."""
        if self._current is None:
            raise InvariantViolation("work was submitted before the resources were opened")
        return self._current

    def submit(self, works: Iterable[Work]) -> None:
        """Run these on the lane for new work. Once closed nothing is run: who submitted it was abandoned."""
        with self._lock:
            if not self._closed:
                self.current.submit(works)

    @contextmanager
    def lent(self) -> Iterator[Lane]:
        """The lane for new work, whose resources stay open meanwhile: for a step that does not run on its loop."""
        with self._lock:
            lane = self.current
            lane.borrowers += 1
        try:
            yield lane
        finally:
            with self._lock:
                lane.borrowers -= 1

    def open(self) -> None:
        """Open the first lane. Raises what a resource raised; may be called again then."""
        lane = Lane(self._resources, self._rest)
        lane.open()
        self._current = lane

    def close(self) -> None:
        """Close the resources and end the loops that answer."""
        with self._lock:
            self._closed = True
            current, self._current = self._current, None
            blocked = list(self._blocked)
        for lane, timeout in ((current, CLOSE_S), *((lane, 0.0) for lane in blocked)):
            if lane is not None and not lane.close(timeout):
                _log.warning("an event loop did not end: a step blocks it", at=_where(lane))
        for thread in self._apart:
            thread.join(CLOSE_S)

    def problems(self) -> list[str]:
        """Sentences about what is wrong here now."""
        return [self._problem] if self._problem else []

    def look(self, now: float) -> None:
        """From time to time, by the pulse: is the current loop alive? Are the blocked ones again?"""
        for lane in list(self._blocked):
            self.current.adopt(lane)
            if lane.silent_for(now) == 0.0 and lane.idle:
                self._blocked.remove(lane)
                self._start_apart(partial(lane.close, CLOSE_S))
        silent = self.current.silent_for(now)
        if silent < BLOCKED_S:
            self._problem = ""
            return
        self._problem = (
            f"a step blocks the event loop for {silent:.0f} s, at {_where(self.current)}: make it a plain `def`"
        )
        if not self._replacing and len(self._blocked) < MOST_LANES:
            _log.error(self._problem)
            self._replacing = True
            self._start_apart(self._replace)

    def _replace(self) -> None:
        lane = Lane(self._resources, self._rest)
        try:
            lane.open()
        except Exception:  # noqa: BLE001 (whatever a resource raises: the old lane stays)
            _log.exception("no other event loop could be opened")
        else:
            if not self._took(lane):
                lane.close(CLOSE_S)
        finally:
            self._replacing = False

    def _took(self, lane: Lane) -> bool:
        with self._lock:
            if not self._closed:
                blocked, self._current = self.current, lane
                self._blocked.append(blocked)
                lane.adopt(blocked)
            return not self._closed

    def _start_apart(self, function: Callable[[], object]) -> None:
        """In a thread of its own: resources take a while to open and close, and meanwhile others have to beat."""
        self._apart = [thread for thread in self._apart if thread.is_alive()]
        thread = threading.Thread(target=function, name="ductor-lane", daemon=True)
        self._apart.append(thread)
        thread.start()


def _where(lane: Lane) -> str:
    """The user's line that the loop's thread is at: the innermost one that is not Python's own."""
    frame = sys._current_frames().get(lane.thread_id or 0)
    places = traceback.extract_stack(frame) if frame is not None else []
    for place in reversed(places):
        standard = place.filename.startswith(_PYTHON) and "site-packages" not in place.filename
        if not standard and not place.filename.startswith("<"):
            return f"{place.filename}:{place.lineno} ({place.name})"
    return "an unknown place"
