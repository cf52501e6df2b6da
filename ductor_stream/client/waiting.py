"""Futures that wait for outcomes, kept by question. Used by both feeds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError

from ductor_stream.engine.state import CLOSED
from ductor_stream.errors import UsageError
from ductor_stream.outcomes import REJECTED, Outcome, Question

FINAL = CLOSED | {REJECTED}


class Waiting:
    """Who waits for what. Safe to use from any thread; a waiter that gave up is forgotten."""

    def __init__(self) -> None:
        self._futures: dict[str, dict[tuple[Question, bool], list[Future[Outcome]]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, question: Question, *, any_status: bool = False) -> Future[Outcome]:
        """A future that ``settle`` will complete: by how the run has ended, or by whatever is known. Raises UsageError
        after ``close``.
        """
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closed:
                raise UsageError("the client is closed")
            self._futures.setdefault(question.run_id, {}).setdefault((question, any_status), []).append(future)
        return future

    def questions(self) -> list[Question]:
        """What is still waited for, of all runs."""
        with self._lock:
            return [question for run_id in list(self._futures) for question in self._open(run_id)]

    def questions_about(self, run_id: str) -> list[Question]:
        """What is still waited for, of one run."""
        with self._lock:
            return self._open(run_id)

    def settle(self, question: Question, outcome: Outcome) -> None:
        """Tell whoever waits for it, if that is what they wait for."""
        kinds = (True, False) if outcome.status in FINAL else (True,)
        for future in self._taken([(question, any_status) for any_status in kinds]):
            with contextlib.suppress(InvalidStateError):  # given up this moment
                future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Tell everyone that there will be no answer."""
        with self._lock:
            asked = [each for of_run in self._futures.values() for each in of_run]
        for future in self._taken(asked):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)

    def close(self) -> None:
        """Nobody may wait any more."""
        with self._lock:
            self._closed = True
        self.fail(UsageError("the client was closed before the answer came"))

    def _open(self, run_id: str) -> list[Question]:
        of_run = self._futures.get(run_id, {})
        for each in list(of_run):
            of_run[each] = [future for future in of_run[each] if not future.cancelled()]
            if not of_run[each]:
                del of_run[each]
        if not of_run:
            self._futures.pop(run_id, None)
        return list(dict.fromkeys(question for question, _ in of_run))

    def _taken(self, asked: Iterable[tuple[Question, bool]]) -> list[Future[Outcome]]:
        with self._lock:
            return [future for each in asked for future in self._futures.get(each[0].run_id, {}).pop(each, ())]
