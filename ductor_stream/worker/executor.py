"""The executor runs attempts: it decides where, watches over them, and reports how each one ended.

Delivery: every order that is submitted is reported exactly once to its delivery, unless the executor is
abandoned first. The same fence never runs twice at a time here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ductor_stream.engine.ids import Fence
from ductor_stream.errors import InvalidValue
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.worker import Task
from ductor_stream.telemetry.batches import observe_all
from ductor_stream.worker import outcomes, processes
from ductor_stream.worker.attempt import AsyncRun, Attempt, Order, ProcessRun
from ductor_stream.worker.context import CurrentAttempt, running_attempt
from ductor_stream.worker.endings import Endings, deliver
from ductor_stream.worker.lane import Lane
from ductor_stream.worker.lanes import Lanes
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.processes import StepProcesses
from ductor_stream.worker.recent import Recent
from ductor_stream.worker.reports import Reports
from ductor_stream.worker.threads import StepThreads
from ductor_stream.worker.vigil import ExecutorConfig, Vigil

_RESULTS_KEPT = 4_096
_RESULT_BYTES_KEPT = 16 * 1024 * 1024
"""Results kept for a redrive that arrives after the end: a few seconds' worth of small ones, never much memory."""

_STOPS_KEPT = 16_384
"""Stops of attempts that are not here (yet): every worker hears all of them, and most are for others."""


class Executor:
    """Runs attempts in threads or processes (plain functions) and on an event loop (coroutines). Used from any thread.

    Raises InvalidDefinition for a step that a process of its own could not find.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        self._steps = {name: step for name, step in config.steps.items() if step.function is not None}
        processes.check(self._steps.values())
        self._clock = config.clock
        self._metrics = config.metrics
        self._reports = Reports(config.worker, config.codec)
        self._endings = Endings(config.clock, config.metrics, self._reports, self._remember)
        self.after_reports = self._endings.after_reports
        self._lanes = Lanes(self._steps.values(), self._endings.report)
        self._threads = StepThreads()
        self._processes = StepProcesses()
        self._vigil = Vigil(config, self._reports, self._settle, self._look)
        self._lock = threading.Lock()
        self._abandoned = False
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
        self._endings.report()
        with self._lock:
            self._abandoned = True
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
        self._processes.close()
        self._threads.close()

    def _look(self, now: float) -> None:
        """From time to time. A step that blocks the loop must not hold up the results of those before it."""
        self._endings.report()
        self._lanes.look(now)

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
        """``submit_all`` of one."""
        self.submit_all([order])

    def submit_all(self, orders: Sequence[Order]) -> None:
        """Run the task of each order, unless it runs here already or its result is remembered: then that is reported.

        The order's slot is given back when its attempt has ended. Once abandoned, nothing is begun or reported: whoever
        sent the task gives its attempt up as one whose worker has died.
        """
        begun: list[Attempt] = []
        answered: list[tuple[Order, Outgoing | Outcome | None]] = []
        started, started_ms = self._clock.monotonic(), self._clock.now()
        with self._lock:
            if self._abandoned:
                for order in orders:
                    order.slots.release()
                return
            for order in orders:
                attempt = self._begun(order, started, started_ms, answered)
                if attempt is not None:
                    begun.append(attempt)
        self._start(begun)
        if answered:
            for order, answer in answered:
                self._answer(order, answer)
            self._endings.reported()

    def _begun(
        self, order: Order, started: float, started_ms: int, answered: list[tuple[Order, Outgoing | Outcome | None]]
    ) -> Attempt | None:
        """The attempt that has to be started for an order; else what is to be answered at once goes to ``answered``."""
        task = order.task
        fence = task.fence
        if (refusal := self._refusal(order)) is not None:
            answered.append((order, refusal))
        elif (running := self._running.get(fence)) is not None:
            running.deliveries.append(order.delivery)
            answered.append((order, None))  # by the attempt that runs
        elif (known := self._results.find(fence)) is not None:
            answered.append((order, known))
        elif (stopped := self._stops.find(fence)) is not None:
            answered.append((order, outcomes.cancelled(stopped)))
        else:
            attempt = self._running[fence] = Attempt(order, self._steps[task.step], started, started_ms)
            return attempt
        return None

    def knows(self, fence: Fence) -> bool:
        """Whether the attempt runs here, or its result is remembered."""
        with self._lock:
            return fence in self._running or self._results.find(fence) is not None

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

    def report(self, task: Task, outcome: Outcome) -> Outgoing:
        """The report of a task whose step does not tell."""
        now = self._clock.now()
        return self._reports.finished(task, now, outcome, now)

    # -- one attempt ------------------------------------------------------------------------

    def _refusal(self, order: Order) -> Outcome | None:
        task = order.task
        if task.step not in self._steps:
            return outcomes.rejected("step_unknown", f"no worker on {order.queue} knows step {task.step}")
        if task.requires:
            return outcomes.rejected("requires_unknown", f"this worker has nothing of: {', '.join(task.requires)}")
        return None

    def _answer(self, order: Order, answer: Outgoing | Outcome | None) -> None:
        """Report what is known without running anything."""
        if isinstance(answer, Outcome):
            self._metrics.worker_attempts[order.queue, answer.word].inc()
            now = self._clock.now()
            answer = self._reports.finished(order.task, now, answer, now)
        order.slots.release()
        if answer is not None:
            deliver(order.delivery, answer, order.task.fence)

    def _start(self, begun: list[Attempt]) -> None:
        self._observe_waits(begun)
        works = [partial(self._run_async, attempt) for attempt in begun if attempt.step.is_async]
        if works:
            self._lanes.submit(works)
        for attempt in begun:
            if not attempt.step.is_async:
                try:
                    self._threads.submit(partial(self._run_plain, attempt))
                except RuntimeError as error:
                    self._settle(attempt, outcomes.raised(error))  # the machine gives no more threads
                    self._endings.report()
        if begun:
            self._vigil.begin(begun)

    def _observe_waits(self, begun: list[Attempt]) -> None:
        waits: dict[str, list[float]] = {}
        for attempt in begun:
            if (since := attempt.task.dispatched_at) is not None:
                waits.setdefault(attempt.queue, []).append(max(0, attempt.started_ms - since) / 1000)
        for queue, found in waits.items():
            observe_all(self._metrics.queue_wait_seconds[queue], found)

    def _run_plain(self, attempt: Attempt) -> None:
        running_attempt.set(CurrentAttempt(attempt, self._vigil.note))
        try:
            with self._lanes.lent() as lane:
                ready = _decoded(attempt, lane)
                if isinstance(ready, Outcome):
                    outcome = ready
                elif isinstance(attempt.run, ProcessRun):
                    outcome = self._processes.run(attempt, attempt.run, self._vigil.note)
                else:
                    outcome = outcomes.returned(attempt.step, attempt.step.invoke(*ready))
        except BaseException as error:  # noqa: BLE001 (said below)
            # SystemExit and KeyboardInterrupt too: what a step raises is a failed attempt, never a dead worker.
            outcome = _raised(attempt, error)
        finally:
            running_attempt.set(None)
        self._settle(attempt, outcome)
        self._endings.report()

    async def _run_async(self, attempt: Attempt, lane: Lane) -> None:
        run = attempt.run
        assert isinstance(run, AsyncRun)
        # Reset afterwards: the next attempt may run in the same context.
        token = running_attempt.set(CurrentAttempt(attempt, self._vigil.note))
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
            running_attempt.reset(token)
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
        if not first:
            if ended:
                attempt.slots.release()
            return
        self._endings.add(attempt, outcome, ended=ended)

    def _remember(self, reported: list[tuple[Attempt, Outgoing]]) -> None:
        with self._lock:
            for attempt, record in reported:
                # Together: a redelivery finds the attempt or its result, never neither.
                self._running.pop(attempt.fence, None)
                self._results.put(attempt.fence, record)


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
