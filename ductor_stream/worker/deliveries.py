"""What came by a task topic, on its way to being done: an attempt, or a dead letter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from ductor_stream.ports import Outgoing, Undeliverable
from ductor_stream.protocol.worker import Task
from ductor_stream.telemetry.batches import observe_all
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker import outcomes
from ductor_stream.worker.clock import WorkerClock
from ductor_stream.worker.ledger import Ledger, Place
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.outlet import Outlet

_log = get_logger(__name__)


class Way(msgspec.Struct, frozen=True):
    """What the deliveries of one queue share. ``instead`` makes the report of a task whose step does not tell."""

    ledger: Ledger
    outlet: Outlet
    clock: WorkerClock
    metrics: Metrics
    instead: Callable[[Task, Outcome], Outgoing]
    acks: deque[float] = msgspec.field(default_factory=deque)
    """Seconds until results were acknowledged: observed by ``observe_acks``, many at once."""

    def observe_acks(self) -> None:
        """From time to time, by one thread."""
        observe_all(self.metrics.result_ack_seconds, [self.acks.popleft() for _ in range(len(self.acks))])


class TopicDelivery:
    """The reports about one task of a topic: it is done when the broker has acknowledged its result.

    Whoever makes it tells the ledger, for a batch at a time.
    """

    __slots__ = ("_announced", "_heard", "_reported_at", "_way", "place", "task")

    def __init__(self, task: Task, place: Place, way: Way) -> None:
        self.task = task
        self.place = place
        self._way = way
        self._reported_at: float | None = None
        self._announced = self._heard = False

    @property
    def runs(self) -> bool:
        """Whether its attempt has not ended yet."""
        return self._reported_at is None

    @property
    def passes(self) -> bool:
        """Whether it runs and the broker has a heartbeat of it: were it to die, its owner would miss it."""
        return self.runs and self._heard

    @property
    def awaits(self) -> bool:
        """Whether its result, or its first heartbeat, is on its way to the broker."""
        return not self.runs or (self._announced and not self._heard)

    def beat(self, record: Outgoing) -> None:
        """A heartbeat (best effort)."""
        self._announced = True
        self._way.outlet.send_once(record, self._beaten)

    def finished(self, record: Outgoing) -> None:
        """The result."""
        self._reported_at = self._way.clock.monotonic()
        self._way.outlet.send(record, self._settled)

    def _beaten(self) -> None:
        if not self._heard:
            self._heard = True
            self._way.ledger.notice()

    def _settled(self, refused: Undeliverable | None) -> None:
        if refused is not None:
            # The run must learn that this result can never arrive.
            _log.error("the broker refuses a result", error=refused.error, **keys_of(self.task.fence))
            self._way.outlet.send(
                self._way.instead(self.task, outcomes.not_taken(self.task, refused.error)), self._gave_up
            )
            return
        took = self._way.clock.monotonic() - (self._reported_at or 0.0)
        self._way.acks.append(took)
        self._way.ledger.done(self.place)

    def _gave_up(self, refused: Undeliverable | None) -> None:
        # Refused again (an illegal results topic): nobody is there to be told, and the owner's timeout will tell.
        self._way.ledger.done(self.place)


class LetterDelivery:
    """A record that is no task, on its way to the dead letters. ``shortened`` goes where the whole does not fit."""

    runs = passes = False
    awaits = True

    def __init__(self, letter: Outgoing, shortened: Outgoing, place: Place, way: Way) -> None:
        self._shortened = shortened
        self._place = place
        self._way = way
        way.ledger.begin(place, self)
        way.outlet.send(letter, self._settled)

    def _settled(self, refused: Undeliverable | None) -> None:
        if refused is not None:
            _log.error("a dead letter does not fit and goes without its value", error=refused.error)
            self._way.outlet.send(self._shortened, self._gave_up)
            return
        self._way.ledger.done(self._place)

    def _gave_up(self, refused: Undeliverable | None) -> None:
        self._way.ledger.done(self._place)
