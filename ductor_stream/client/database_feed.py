"""Outcomes out of Postgres: one thread asks for all runs that are waited for, in one query at a time."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from ductor_stream.client.ports import RunReader
from ductor_stream.client.waiting import Waiting
from ductor_stream.errors import DuctorError, TransientError
from ductor_stream.outcomes import Outcome, Question
from ductor_stream.telemetry.logs import get_logger

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
"""Between two looks: from 10 ms, which a short run does not notice, doubled to half a second."""

AT_ONCE = 500
"""Runs in one query: some 50 KB of ids, and milliseconds of an index."""

_log = get_logger(__name__)


class DatabaseFeed:
    """Looks again and again, more slowly as time goes by; an unreachable database is waited for."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._waiting = Waiting()
        self._latest: dict[Question, Outcome] = {}
        self._asked_before: set[Question] = set()
        self._asked = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ductor-outcomes", daemon=True)
        self._thread.start()

    def expect(self, question: Question) -> None:
        """Nothing to do: whatever is committed can be read later."""

    def outcome(self, question: Question) -> Future[Outcome]:
        """Done when the run's row says that the execution has ended."""
        return self._wait(question, any_status=False)

    def known(self, question: Question) -> Future[Outcome]:
        """Done when the run's row was read, once it is there."""
        return self._wait(question, any_status=True)

    def _wait(self, question: Question, *, any_status: bool) -> Future[Outcome]:
        future = self._waiting.add(question, any_status=any_status)
        self._asked.set()
        return future

    def latest(self, question: Question) -> Outcome | None:
        """What was read at the last look, while somebody waits."""
        return self._latest.get(question)

    def can_tell(self, question: Question) -> bool:
        """Always: Postgres knows every run."""
        return True

    def close(self) -> None:
        """Fail whoever still waits, end the thread, close the reader."""
        self._closed = True
        self._waiting.close()
        self._asked.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._closed:
            questions = self._waiting.questions()
            if not questions:
                self._latest.clear()
                self._asked.wait()
            elif self._asked.wait(pause):
                # Somebody new: a run that was just started is soon looked at.
                pause = FIRST_PAUSE_S
            else:
                pause = min(pause * 2, LONGEST_PAUSE_S)
            self._asked.clear()
            self._look(self._waiting.questions())

    def _look(self, questions: list[Question]) -> None:
        self._forget_all_but({*questions})
        try:
            for start in range(0, len(questions), AT_ONCE):
                for question, outcome in self._reader.outcomes(questions[start : start + AT_ONCE]).items():
                    self._latest[question] = outcome
                    self._waiting.settle(question, outcome)
        except TransientError as error:
            _log.warning("outcomes cannot be read for now, trying again", problem=str(error))
        except DuctorError as error:
            self._waiting.fail(error)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, and the thread live on
            _log.exception("reading outcomes failed")
            self._waiting.fail(error)

    def _forget_all_but(self, asked: set[Question]) -> None:
        # What was asked at the last look stays for one more: whoever has just given up is about to tell what it was.
        for question in self._latest.keys() - asked - self._asked_before:
            del self._latest[question]
        self._asked_before = asked
