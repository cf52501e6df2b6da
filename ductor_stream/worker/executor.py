"""The executor runs attempts: it decides where, watches over them, and reports how each one ended.

Delivery: every order that is submitted is reported exactly once to its delivery, unless the executor is
abandoned first. The same fence never runs twice at a time here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

from ductor_stream.engine.ids import Fence
from ductor_stream.errors import InvalidDefinition, InvalidValue
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.worker import Task
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.worker import outcomes
from ductor_stream.worker.attempt import Attempt, Delivery, Order
from ductor_stream.worker.context import CurrentAttempt, running_attempt
from ductor_stream.worker.lane import Lane
from ductor_stream.worker.lanes import Lanes
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.recent import Recent
from ductor_stream.worker.reports import Reports
from ductor_stream.worker.steps import RegisteredStep
from ductor_stream.worker.threads import StepThreads
from ductor_stream.worker.vigil import ExecutorConfig, Vigil

_log = get_logger(__name__)

_RESULTS_KEPT = 4_096
_RESULT_BYTES_KEPT = 16 * 1024 * 1024
"""Results kept for a redrive that arrives after the end: a few seconds' worth of small ones, never much memory."""

_STOPS_KEPT = 16_384
"""Stops of attempts that are not here (yet): every worker hears all of them, and most are for others."""


class Executor:
    """Runs attempts in threads (plain functions) and on an event loop (coroutines). Used from any thread.

    Raises InvalidDefinition for a step that this release cannot run.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        self._steps = {name: _runnable(step) for name, step in config.steps.items() if step.function is not None}
        self._clock = config.clock
        self._metrics = config.metrics
        self._reports = Reports(config.worker, config.clock, config.codec)
        self._lanes = Lanes(self._steps.values())
        self._threads = StepThreads()
        self._vigil = Vigil(config, self._reports, self._settle, self._lanes.look)
        self._lock = threading.Lock()
        self._running: dict[Fence, Attempt] = {}
        self._results: Recent[Outgoing] = Recent(_RESULTS_KEPT, _RESULT_BYTES_KEPT, lambda record: len(record.value))
        self._stops: Recent[str] = Recent(_STOPS_KEPT)

    # -- life -------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the resources and start to beat. Raises what a resource raised; may be called again then."""
        self._lanes.open()
        self._vigil.start()

    def abandon(self, reason: str) -> None:
        """Report nothing more: ask all attempts to stop, and interrupt those that can be."""
        with self._lock:
            left = list(self._running.values())
            self._running.clear()
        for attempt in left:
            with attempt.lock:
                attempt.settled = True
            attempt.request_stop(reason)

    def close(self) -> None:
        """Abandon what runs, close the resources, end the threads that can be ended."""
        self.abandon("the worker ends")
        self._vigil.close()
        self._lanes.close()
        self._threads.close()

    def problems(self) -> list[str]:
        """Sentences about what is wrong with what runs here; empty when nothing is."""
        return self._lanes.problems()

    # -- what runs --------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """How many attempts run and are not reported yet."""
        return len(self._running)

    def can_run(self, step: str) -> bool:
        """Whether a step of that name can be run here now: it is known, and the resources are open."""
        return step in self._steps and self._lanes.opened

    def submit(self, order: Order) -> None:
        """Run the order's task, unless it runs here already or its result is remembered: then that one is reported.

        The order's slot is given back when its attempt has ended.
        """
        if (refusal := self._refusal(order)) is not None:
            self._answer(order, refusal)
            return
        fence = order.task.fence
        with self._lock:
            known = self._results.find(fence)
            running = self._running.get(fence)
            stopped = self._stops.find(fence)
            if running is not None:
                running.deliveries.append(order.delivery)
            elif known is None and stopped is None:
                attempt = self._running[fence] = self._prepared(order)
        if running is not None:
            order.slots.release()
        elif known is not None:
            order.slots.release()
            _deliver(order.delivery, known)
        elif stopped is not None:
            self._answer(order, outcomes.cancelled(stopped))
        else:
            self._start(attempt)

    def stop(self, fence: Fence, reason: str) -> None:
        """Nobody wants this attempt any more: interrupt it, or refuse it when its task comes."""
        with self._lock:
            attempt = self._running.get(fence)
            if attempt is None:
                self._stops.put(fence, reason)
                return
        self._metrics.worker_stops.inc()
        attempt.request_stop(reason)

    def announce(self, fences: Iterable[Fence]) -> None:
        """Beat now for those of these attempts that the worker beats for: their tasks are about to be committed."""
        with self._lock:
            found = [self._running[fence] for fence in fences if fence in self._running]
        for attempt in found:
            if not attempt.step.own_heartbeat:
                self._vigil.beat(attempt)

    def report_refused(self, task: Task, error: str) -> Outgoing:
        """The report in place of a result that the broker does not take."""
        return self._reports.finished(task, self._clock.now(), outcomes.not_taken(task, error))

    # -- one attempt ------------------------------------------------------------------------

    def _refusal(self, order: Order) -> Outcome | None:
        task = order.task
        if task.step not in self._steps:
            return outcomes.rejected("step_unknown", f"no worker on {order.queue} knows step {task.step}")
        if task.requires:
            return outcomes.rejected("requires_unknown", f"this worker has nothing of: {', '.join(task.requires)}")
        return None

    def _answer(self, order: Order, outcome: Outcome) -> None:
        """Report an outcome without running anything."""
        record = self._reports.finished(order.task, self._clock.now(), outcome)
        self._metrics.worker_attempts[order.queue, outcome.word].inc()
        order.slots.release()
        _deliver(order.delivery, record)

    def _prepared(self, order: Order) -> Attempt:
        task, started_ms = order.task, self._clock.now()
        attempt = Attempt(order, self._steps[task.step], self._clock.monotonic(), started_ms)
        if task.dispatched_at is not None:
            self._metrics.queue_wait_seconds[order.queue].observe(max(0, started_ms - task.dispatched_at) / 1000)
        return attempt

    def _start(self, attempt: Attempt) -> None:
        if attempt.run is not None:
            self._lanes.current.submit(partial(self._run_async, attempt))
        else:
            try:
                self._threads.submit(partial(self._run_plain, attempt))
            except RuntimeError as error:
                self._settle(attempt, outcomes.raised(error))  # the machine gives no more threads
        self._vigil.watch(attempt)

    def _run_plain(self, attempt: Attempt) -> None:
        running_attempt.set(CurrentAttempt(attempt, self._vigil.note))
        try:
            ready = _decoded(attempt, self._lanes.current)
            if isinstance(ready, Outcome):
                outcome = ready
            else:
                outcome = outcomes.returned(attempt.step, attempt.step.invoke(*ready))
        except BaseException as error:  # noqa: BLE001 (said below)
            # SystemExit and KeyboardInterrupt too: what a step raises is a failed attempt, never a dead worker.
            outcome = _raised(attempt, error)
        finally:
            running_attempt.set(None)
        self._settle(attempt, outcome)

    async def _run_async(self, attempt: Attempt, lane: Lane) -> None:
        run = attempt.run
        assert run is not None
        running_attempt.set(CurrentAttempt(attempt, self._vigil.note))
        try:
            if not run.begin(lane):
                raise outcomes.Interrupted
            ready = _decoded(attempt, lane)
            if isinstance(ready, Outcome):
                outcome = ready
            else:
                outcome = outcomes.returned(attempt.step, await attempt.step.invoke(*ready))
        except BaseException as error:  # noqa: BLE001 (as above)
            outcome = _raised(attempt, error)
        finally:
            run.end()
        self._settle(attempt, outcome)

    def _settle(self, attempt: Attempt, outcome: Outcome, *, ended: bool = True) -> None:
        """Report the outcome once. Not ``ended``: it is given up, and keeps its slot until its code has returned."""
        with attempt.lock:
            first, attempt.settled = not attempt.settled, True
            if first and not ended:
                attempt.lost = True
                attempt.slots.lose()
            elif ended and attempt.lost:
                attempt.slots.recover()
        if first:
            self._report(attempt, outcome)
        if ended:
            attempt.slots.release()

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        record = self._reports.finished(attempt.task, attempt.started_ms, outcome)
        with self._lock:
            # Together: a redelivery finds the attempt or its result, never neither.
            self._running.pop(attempt.fence, None)
            self._results.put(attempt.fence, record)
        self._metrics.worker_attempts[attempt.queue, outcome.word].inc()
        self._metrics.worker_attempt_seconds[attempt.queue].observe(self._clock.monotonic() - attempt.started)
        for delivery in attempt.deliveries:
            _deliver(delivery, record)


def _runnable(step: RegisteredStep) -> RegisteredStep:
    if step.executor == "process":
        raise InvalidDefinition(f"step {step.name}: executor='process' is not in this release yet; leave it out")
    return step


def _decoded(attempt: Attempt, lane: Lane) -> tuple[list[Any], dict[str, Any]] | Outcome:
    """What the step is called with, or why this worker cannot call it."""
    step = attempt.step
    try:
        arguments = step.decode_input(attempt.task.input)
    except InvalidValue as error:
        return outcomes.rejected("input_not_decodable", str(error))
    return arguments, {parameter: lane.values[resource.name] for parameter, resource in step.resources.items()}


def _raised(attempt: Attempt, error: BaseException) -> Outcome:
    if attempt.overdue:
        return outcomes.overdue(attempt.task)
    if attempt.stop.requested and outcomes.is_cancellation(error):
        return outcomes.cancelled(attempt.stop.reason)
    return outcomes.raised(error)


def _deliver(delivery: Delivery, record: Outgoing) -> None:
    try:
        delivery.finished(record)
    except Exception:  # noqa: BLE001 (said below)
        # One receiver's fault must not keep the result from the others, or the slot from being free again.
        _log.exception("a result could not be handed over")
