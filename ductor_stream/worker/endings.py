"""Attempts that have ended, until they are reported: what ends together is reported together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ductor_stream.engine.ids import Fence
from ductor_stream.ports import Outgoing
from ductor_stream.telemetry.batches import observe_all
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker import outcomes
from ductor_stream.worker.attempt import Attempt, Delivery
from ductor_stream.worker.clock import WorkerClock
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.reports import Reports

_log = get_logger(__name__)

HELD_S = 0.001
"""How long what has ended waits at most for what runs right after it, to be reported together with it."""

Ended = tuple[Attempt, Outcome, float, bool]
"""An attempt, how and when (monotonic) it ended, and whether its code has: else it was given up."""


class Endings:
    """Holds what has ended while more ends right after it. Used from any thread.

    Nothing is held while nothing else runs: whoever ran the last piece of a batch calls ``report``. ``remember``
    hears of each batch before its deliveries do.
    """

    def __init__(
        self,
        clock: WorkerClock,
        metrics: Metrics,
        reports: Reports,
        remember: Callable[[list[tuple[Attempt, Outgoing]]], None],
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._reports = reports
        self._remember = remember
        self._lock = threading.Lock()
        self._ended: list[Ended] = []
        self._last_end = 0.0
        self._after: list[Callable[[], None]] = []

    def after_reports(self, function: Callable[[], None]) -> None:
        """Call this from now on, in whatever thread it is, after some results were handed to their deliveries."""
        self._after.append(function)

    def add(self, attempt: Attempt, outcome: Outcome, *, ended: bool) -> None:
        """An attempt is settled, by its end or by being given up (not ``ended``): to be reported soon, or now."""
        now = self._clock.monotonic()
        with self._lock:
            self._ended.append((attempt, outcome, now, ended))
            # Only what is quick is held: after a slow one the next may be slow too.
            slow = now - self._last_end > HELD_S or now - self._ended[0][2] > HELD_S
            self._last_end = now
        if slow or not ended:
            self.report()

    def report(self) -> None:
        """Report all that has ended and is not reported yet."""
        if not self._ended:
            return
        with self._lock:
            ended, self._ended = self._ended, []
        finished_ms = self._clock.now()
        reported = [(attempt, self._record(attempt, outcome, finished_ms)) for attempt, outcome, _, _ in ended]
        self._remember(reported)
        for attempt, record in reported:
            for delivery in attempt.deliveries:
                deliver(delivery, record, attempt.fence)
        self.reported()
        for slots, count in Counter([attempt.slots for attempt, _, _, over in ended if over]).items():
            slots.release(count)
        self._count(ended)

    def reported(self) -> None:
        """Some results were handed to their deliveries."""
        for function in self._after:
            function()

    def _record(self, attempt: Attempt, outcome: Outcome, finished_ms: int) -> Outgoing:
        try:
            return self._reports.finished(attempt.task, attempt.started_ms, outcome, finished_ms)
        except Exception as error:  # noqa: BLE001 (one that cannot be written must not hold up the others)
            _log.exception("a result could not be written", **keys_of(attempt.fence))
            return self._reports.finished(attempt.task, attempt.started_ms, outcomes.raised(error), finished_ms)

    def _count(self, ended: list[Ended]) -> None:
        for key, count in Counter([(attempt.queue, outcome.word) for attempt, outcome, _, _ in ended]).items():
            self._metrics.worker_attempts[key].inc(count)
        took: dict[str, list[float]] = {}
        for attempt, _, at, _ in ended:
            took.setdefault(attempt.queue, []).append(at - attempt.started)
        for queue, seconds in took.items():
            observe_all(self._metrics.worker_attempt_seconds[queue], seconds)


def deliver(delivery: Delivery, record: Outgoing, fence: Fence) -> None:
    """Hand a result over; what a receiver raises is logged."""
    try:
        delivery.finished(record)
    except Exception:  # noqa: BLE001 (said below)
        # One receiver's fault must not keep the result from the others, or the slot from being free again.
        _log.exception("a result could not be handed over", **keys_of(fence))
