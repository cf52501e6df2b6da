"""Processes for steps with ``executor="process"``: each runs one attempt at a time and can be killed, as no thread can."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import msgspec

from ductor_stream.errors import InvalidDefinition, RetryableError
from ductor_stream.telemetry import logs
from ductor_stream.worker.attempt import Attempt, ProcessRun
from ductor_stream.worker.child import Beat, Job, find_step, qualname, serve
from ductor_stream.worker.outcomes import Interrupted, Outcome
from ductor_stream.worker.steps import RegisteredStep

Note = Callable[[Attempt, Any], None]

_IDLE = max(2, os.cpu_count() or 1)
"""Processes kept for the next attempts: more could not compute at a time."""

_EXIT_WITHIN_S = 5.0
"""How long a process that was killed may take to be gone."""

_LOOK_S = 0.005
"""Between two looks for that."""

# A fork of a process that has threads may hang; spawn also runs on every system.
_context = get_context("spawn")


class _Unbegun(Exception):
    """A process that was kept had died before it had heard of the attempt: another one takes it."""


class Child:
    """A process of ours at the other end of a pipe. ``used``: it has run an attempt before."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        self._reaping = threading.Lock()
        self._gone = False
        self.used = False
        self.pipe, theirs = _context.Pipe()
        # A daemon, so that a worker that ends in disorder does not wait for it at its exit.
        self.process = _context.Process(target=serve, args=(theirs, logs.configured()), name="ductor-step", daemon=True)
        try:
            self.process.start()
        finally:
            theirs.close()

    def kill(self) -> None:
        """End it and what it has started, at once; harmless where it is gone."""
        with self._reaping:
            if self._gone or self.process.exitcode is not None:
                return  # its number may be another's by now
            pid = self.process.pid
            with suppress(OSError, AttributeError):  # it has no group yet, or the system has none
                if pid is not None:
                    os.killpg(pid, signal.SIGKILL)
            with suppress(OSError):
                self.process.kill()

    def ended(self) -> str:
        """How it ended, after its pipe has: waits for that."""
        give_up_at = time.monotonic() + _EXIT_WITHIN_S
        while (code := self._reaped()) is None and time.monotonic() < give_up_at:
            time.sleep(_LOOK_S)
        if code is None:
            return "it closed its pipe and goes on"
        return f"it was ended by {_signal(-code)}" if code < 0 else f"it ended with exit status {code}"

    def _reaped(self) -> int | None:
        with self._reaping:
            code = self.process.exitcode
            self._gone = code is not None
        return code

    def close(self) -> None:
        """End it, and give back what it held here."""
        self.kill()
        self.ended()
        self.pipe.close()


class StepProcesses:
    """Runs attempts in processes, and keeps processes for the next ones. Used from the threads of steps.

    How many there are at a time is bounded by whoever calls: each attempt holds a slot.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._closed = False

    def run(self, attempt: Attempt, run: ProcessRun, note: Note) -> Outcome:
        """Run the attempt to its end, passing its heartbeats on to ``note``.

        Raises Interrupted where it was asked to stop, RetryableError where its process died or could not be started.
        """
        assert attempt.step.function is not None
        job = Job(
            attempt.step.function.__module__,
            attempt.step.name,
            qualname(attempt.step),
            attempt.task,
            attempt.started_ms,
        )
        while True:
            child = self._taken()
            try:
                outcome = self._ran(child, job, attempt, run, note)
            except _Unbegun:
                self._drop(child)
            except BaseException:
                self._drop(child)
                raise
            else:
                self._give_back(child)
                return outcome

    def close(self) -> None:
        """Kill all: what runs has been given up."""
        with self._lock:
            self._closed = True
            left = list(self._all)
            self._idle.clear()
        for child in left:
            child.kill()
        for child in left:
            self._drop(child)

    def _taken(self) -> Child:
        """An idle process, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            child = Child()
        except OSError as error:
            raise RetryableError(f"no process could be started: {error}", type="ProcessNotStarted") from error
        with self._lock:
            self._all.add(child)
            if not self._closed:
                return child
        self._drop(child)
        raise Interrupted

    def _ran(self, child: Child, job: Job, attempt: Attempt, run: ProcessRun, note: Note) -> Outcome:
        """What the process says of the job. Raises Interrupted, RetryableError, and _Unbegun."""
        begun = False
        try:
            if not run.begin(child.kill):
                raise Interrupted
            child.pipe.send(job)
            while not isinstance(message := child.pipe.recv(), Outcome):
                begun = True
                if isinstance(message, Beat):
                    note(attempt, msgspec.json.decode(message.details))
        except (EOFError, OSError) as error:
            told = child.ended()
            if self._closed or attempt.overdue or attempt.stop.requested:
                raise Interrupted from error
            if child.used and not begun:
                raise _Unbegun from error
            raise RetryableError(f"the process of step {job.step} died: {told}", type="ProcessDied") from error
        finally:
            run.end()
        child.used = True
        return message

    def _give_back(self, child: Child) -> None:
        with self._lock:
            keep = not self._closed and len(self._idle) < _IDLE
            if keep:
                self._idle.append(child)
        if not keep:
            self._drop(child)

    def _drop(self, child: Child) -> None:
        with self._lock:
            known = child in self._all
            self._all.discard(child)
        if known:
            child.close()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # one of the real-time ones has no name


def check(steps: Iterable[RegisteredStep]) -> None:
    """Refuse steps that a process of its own could not find. Raises InvalidDefinition."""
    for step in steps:
        if step.executor != "process":
            continue
        module = getattr(step.function, "__module__", "")
        there = sys.modules.get(module)
        if there is None or find_step(there, step.name, qualname(step)) is None:
            raise InvalidDefinition(
                f"step {step.name}: executor='process' finds a step in its module, and {module} has it under no name at its "
                "top: declare it there, or leave executor= out"
            )
