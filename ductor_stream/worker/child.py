"""A process for steps: runs one attempt at a time, as it is told over a pipe. What of it runs in the child stands here."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import ModuleType
from typing import Any, cast

import msgspec

from ductor_stream.protocol.worker import Task
from ductor_stream.telemetry import logs
from ductor_stream.worker import outcomes
from ductor_stream.worker.context import CurrentAttempt, StopFlag, running_attempt
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.reports import details_json
from ductor_stream.worker.steps import RegisteredStep


class Job(msgspec.Struct, frozen=True):
    """An attempt for a child: its step is found in that module by its name and its function's."""

    module: str
    step: str
    function: str
    task: Task
    started_ms: int


class Begun(msgspec.Struct, frozen=True):
    """The attempt has been heard of: from now on it may have had effects."""


class Beat(msgspec.Struct, frozen=True):
    """The step says that it lives; ``details`` are JSON."""

    details: bytes


class _Trial:
    """The attempt as the step sees it. Nobody asks it to stop: its process is ended."""

    def __init__(self, job: Job) -> None:
        self.task = job.task
        self.started_ms = job.started_ms
        self.stop = StopFlag()


def find_step(module: ModuleType, name: str, function: str) -> RegisteredStep | None:
    """The step of that name in a module, whatever it is bound to there. Two apps may have steps of one name."""
    for value in vars(module).values():
        if getattr(value, "kind", None) == "step" and (value.name, qualname(value)) == (name, function):
            return cast(RegisteredStep, value)
    return None


def qualname(step: RegisteredStep) -> str:
    """The full name of the user's function in its module."""
    return str(getattr(step.function, "__qualname__", ""))


def serve(pipe: Connection, log: logs.Configured | None) -> None:
    """Run what comes over the pipe, until its other end is closed: then the process ends, whatever it is at."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the worker, which drains; and what a step starts ends with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if log is not None:
        logs.configure(*log)
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), name="ductor-jobs", daemon=True).start()
    sending = threading.Lock()

    def send(message: Outcome | Begun | Beat) -> None:
        with sending:
            pipe.send(message)

    def beat(_: Any, details: Any) -> None:
        send(Beat(details_json(details)))

    while True:
        job = jobs.get()
        send(Begun())
        send(run(job, beat))


def _listen(pipe: Connection, jobs: SimpleQueue[Job]) -> None:
    try:
        while True:
            jobs.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)  # the worker is gone; nobody wants what is still computed here


def run(job: Job, beat: Any) -> Outcome:
    """One attempt, to its end. Whatever it raises is an outcome."""
    try:
        step = find_step(importlib.import_module(job.module), job.step, job.function)
    except BaseException as error:  # noqa: BLE001 - a user's module may do anything
        return outcomes.raised(ImportError(f"{job.module} cannot be imported in a process of its own: {error!r}"))
    if step is None:
        return outcomes.raised(ImportError(f"{job.module} has no step {job.step} in a process of its own"))
    running_attempt.set(CurrentAttempt(_Trial(job), beat))
    try:
        arguments = step.decode_input(job.task.input)
        return outcomes.returned(step, step.invoke(arguments, {}))
    except BaseException as error:  # noqa: BLE001 - SystemExit too is a failed attempt, and no end of the process
        return outcomes.raised(error)
    finally:
        running_attempt.set(None)
        _flush()


def _flush() -> None:
    """What the step has printed belongs before what the next one prints, also when this process is killed."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None where there is no terminal at all
            stream.flush()
