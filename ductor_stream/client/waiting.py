"""Futures that wait for outcomes, kept by question. Used by both feeds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError

from ductor_stream.client.ports import REJECTED, Outcome, Question
from ductor_stream.engine.state import CLOSED
from ductor_stream.errors import UsageError

FINAL = CLOSED | {REJECTED}


class Waiting:
    """Who waits for what. Safe to use from any thread; a waiter that gave up is forgotten."""

    def __init__(self) -> None:
        self._futures: dict[Question, list[Future[Outcome]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, question: Question) -> Future[Outcome]:
        """A future that ``settle`` will complete. Raises UsageError after ``close``."""
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closed:
                raise UsageError("the client is closed")
            self._futures.setdefault(question, []).append(future)
        return future

    def questions(self) -> list[Question]:
        """What is still waited for."""
        with self._lock:
            for question in list(self._futures):
                left = [future for future in self._futures[question] if not future.cancelled()]
                if left:
                    self._futures[question] = left
                else:
                    del self._futures[question]
            return list(self._futures)

    def settle(self, question: Question, outcome: Outcome) -> None:
        """Tell whoever waits for it, if the outcome is final."""
        if outcome.status in FINAL:
            for future in self._taken([question]):
                with contextlib.suppress(InvalidStateError):  # given up this moment
                    future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Tell everyone that there will be no answer."""
        with self._lock:
            asked = list(self._futures)
        for future in self._taken(asked):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)

    def close(self) -> None:
        """Nobody may wait any more."""
        with self._lock:
            self._closed = True
        self.fail(UsageError("the client was closed before the run ended"))

    def _taken(self, questions: Iterable[Question]) -> list[Future[Outcome]]:
        with self._lock:
            return [future for question in questions for future in self._futures.pop(question, ())]
