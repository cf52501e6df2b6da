"""The vigil over running attempts: their heartbeats, and what happens when their time is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker import outcomes
from ductor_stream.worker.attempt import Attempt
from ductor_stream.worker.clock import WorkerClock
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.pulse import Pulse
from ductor_stream.worker.reports import Reports, details_json
from ductor_stream.worker.steps import RegisteredStep

_log = get_logger(__name__)


class ExecutorConfig(msgspec.Struct, frozen=True):
    """What an executor is made of. ``worker`` names this process in its reports."""

    steps: Mapping[str, RegisteredStep]
    worker: str
    clock: WorkerClock
    metrics: Metrics
    codec: WorkerCodec


class Settle(Protocol):
    """Reports how an attempt ended; not ``ended`` where its code still runs."""

    def __call__(self, attempt: Attempt, outcome: Outcome, *, ended: bool) -> None: ...


class Vigil:
    """Beats for attempts that do not beat by themselves, and gives up those that run too long."""

    def __init__(
        self, config: ExecutorConfig, reports: Reports, settle: Settle, around: Callable[[float], None]
    ) -> None:
        self._monotonic = config.clock.monotonic
        self._metrics = config.metrics
        self._reports = reports
        self._settle = settle
        self._pulse = Pulse(config.clock.monotonic, self._look, around)
        self.start = self._pulse.start
        self.close = self._pulse.close
        self.watch = self._pulse.watch
        self.begin = self._pulse.begin

    def beat(self, attempt: Attempt) -> None:
        """Send a heartbeat now."""
        with attempt.lock:
            if attempt.settled:
                return
            attempt.rhythm.sent(self._monotonic())
            details = attempt.rhythm.details
        record = self._reports.heartbeat(attempt.task, attempt.started_ms, details)
        self._metrics.heartbeats.inc()
        for delivery in attempt.deliveries:
            try:
                delivery.beat(record)
            except Exception:  # noqa: BLE001 (it may be called from the step's own heartbeat(), which must not fail by it)
                _log.exception("a heartbeat could not be handed over", **keys_of(attempt.fence))

    def note(self, attempt: Attempt, found: Any) -> None:
        """The step's own heartbeat. Raises InvalidValue, PayloadTooLarge."""
        details = None if found is None else details_json(found)
        now = self._monotonic()
        with attempt.lock:
            if attempt.settled:
                return
            due = attempt.rhythm.note(details, now)
        if due <= now:
            self.beat(attempt)
        else:
            self.watch(attempt)

    def _look(self, attempt: Attempt, now: float) -> None:
        """The pulse: a heartbeat or a timeout of the attempt is due."""
        if attempt.passed(now):
            self._expire(attempt)
        elif attempt.rhythm.due <= now:
            self.beat(attempt)

    def _expire(self, attempt: Attempt) -> None:
        first, attempt.overdue = not attempt.overdue, True
        if attempt.run is not None and first:
            attempt.run.cancel()
            return
        _log.warning("a step does not end after its timeout", step=attempt.task.step, **keys_of(attempt.fence))
        self._settle(attempt, outcomes.overdue(attempt.task, still_runs=True), ended=False)
