"""Outcomes out of ``run-lifecycle``: for clients without a database.

It knows what was published since the client was opened; a run from before cannot be told from one that does
not exist, so a handle to such a run is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

from ductor_stream.client.ports import ClientLog
from ductor_stream.client.waiting import Waiting
from ductor_stream.outcomes import REJECTED, Outcome, Question
from ductor_stream.protocol.lifecycle import LifecycleEvent

REMEMBERED = 100_000
"""Runs whose latest events are kept, least recently named out first: a few hundred bytes each, results apart."""

EXECUTIONS = 4
"""Executions kept per run: an older one was replaced by so many starts that nobody can still wait for it."""


class _Execution:
    __slots__ = ("latest", "seq", "start_id")

    def __init__(self, latest: Outcome) -> None:
        self.latest, self.seq = latest, 0
        self.start_id = ""


class _Followed:
    """One run that somebody named: its last executions, and starts of it that were refused."""

    __slots__ = ("answered", "executions", "refused", "started_here")

    def __init__(self) -> None:
        self.answered: Outcome | None = None
        self.executions: dict[int, _Execution] = {}
        self.refused: dict[str, Outcome] = {}
        self.started_here = False

    def answer(self, question: Question) -> Outcome | None:
        if question.start_id in self.refused:
            return self.refused[question.start_id]
        if not question.start_id and self.answered is not None:
            # Of the run as it is, whatever was heard of it; not of what another start may be about to begin.
            latest = max(self.executions, default=0)
            return self.answered if self.answered.execution >= latest else self.executions[latest].latest
        if not self.executions:
            return None
        newest = self.executions[max(self.executions)]
        if not question.start_id:
            return newest.latest
        own = [number for number, found in self.executions.items() if found.start_id == question.start_id]
        if not own and not newest.start_id:
            # Its beginning was not heard, or does not say whose start it was: the newest is the best guess.
            return newest.latest
        return self.executions[max(own)].latest if own else None


class LifecycleFeed:
    """Follows the runs that were named, once somebody waits. The topic is not read before that."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        self._waiting = Waiting()
        self._following = False

    def expect(self, question: Question) -> None:
        """Follow the run: it is started by this client."""
        with self._lock:
            self._named(question.run_id).started_here = True

    def outcome(self, question: Question) -> Future[Outcome]:
        """Done when a terminal event of the execution was read."""
        future = self._waiting.add(question)
        with self._lock:
            known = self._named(question.run_id).answer(question)
            begin, self._following = not self._following, True
        if known is not None:
            self._waiting.settle(question, known)
        if begin:
            self._log.follow(self._heard)
        return future

    def latest(self, question: Question) -> Outcome | None:
        """What was last read of the execution."""
        with self._lock:
            followed = self._followed.get(question.run_id)
            return followed.answer(question) if followed else None

    def can_tell(self, question: Question) -> bool:
        """Whether this client started the run, or heard of it since it was named."""
        with self._lock:
            followed = self._named(question.run_id)
            return followed.started_here or bool(followed.executions)

    def close(self) -> None:
        """Fail whoever still waits; the log is closed by its owner."""
        self._waiting.close()

    def _named(self, run_id: str) -> _Followed:
        followed = self._followed.setdefault(run_id, _Followed())
        self._followed.move_to_end(run_id)
        if len(self._followed) > REMEMBERED:
            self._followed.popitem(last=False)
        return followed

    def _heard(self, event: LifecycleEvent) -> None:
        with self._lock:
            followed = self._followed.get(event.run_id)
            if followed is None:
                return
            _note(followed, event)
        for question in self._waiting.questions_about(event.run_id):
            with self._lock:
                answer = followed.answer(question)
            if answer is not None:
                self._waiting.settle(question, answer)


def _note(followed: _Followed, event: LifecycleEvent) -> None:
    outcome = Outcome(
        event.run_id,
        event.execution,
        event.status or REJECTED,
        event.workflow,
        event.version,
        event.result,
        event.error,
        event.reason or event.code,
    )
    if event.type == "command.rejected":
        # Refused commands and signals change nothing; a refused start is what its own handle waits for.
        if event.code == "run_exists" and event.about:
            followed.refused[event.about] = outcome
        return
    if event.type == "start.answered":
        followed.answered = outcome
        return
    execution = followed.executions.get(event.execution)
    if execution is None:
        execution = followed.executions[event.execution] = _Execution(outcome)
        # An execution that does not name a start goes on with what the last one had: a retry, ContinueAsNew.
        earlier = [number for number in followed.executions if number < event.execution]
        execution.start_id = followed.executions[max(earlier)].start_id if earlier else ""
    if event.seq >= execution.seq:
        # What is redriven comes again after what followed it, and must not hide how the run has ended.
        execution.latest, execution.seq = outcome, event.seq
    if event.type == "run.started" and event.about:
        execution.start_id = event.about
    while len(followed.executions) > EXECUTIONS:
        del followed.executions[min(followed.executions)]
