"""Threads for steps that are plain functions. All are daemons: one that never ends must not hold up the exit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from ductor_stream.telemetry.logs import get_logger

_log = get_logger(__name__)
Job = Callable[[], None]


class StepThreads:
    """Runs each job in a thread of its own, and keeps threads for the next ones.

    How many there are is bounded by whoever submits: each job holds a slot. (The pool of the standard library
    joins its threads at exit, and would wait for ever for a step that does.)
    """

    def __init__(self, name: str = "ductor-step") -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._starting = threading.Lock()

    def submit(self, job: Job) -> None:
        """Run the job soon, in an idle thread or a new one. Raises RuntimeError when no thread can be started."""
        if not self._idle.acquire(blocking=False):
            with self._starting:
                thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True)
                thread.start()
                self._started += 1
        self._jobs.put(job)

    def close(self) -> None:
        """Let the idle threads end; the others end after their job, if it ever does."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:  # noqa: BLE001 (said below)
                # A job reports by itself; what still gets here (SystemExit too) must not cost the thread.
                _log.exception("a step's thread caught what its attempt did not")
            # Else the frame would keep the last attempt's values alive until the next one.
            del job
            self._idle.release()
