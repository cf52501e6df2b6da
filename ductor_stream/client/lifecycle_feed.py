"""Outcomes out of ``run-lifecycle``: for clients without a database.

It knows what was published since the client was opened; a run from before cannot be told from one that does
not exist, so a handle to such a run is refused.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from concurrent.futures import Future

from ductor_stream.client.ports import ClientLog
from ductor_stream.client.waiting import Waiting
from ductor_stream.outcomes import REJECTED, Outcome, Question
from ductor_stream.protocol.lifecycle import LifecycleEvent

REMEMBERED = 100_000
"""Runs whose latest events are kept, least recently named out first: a few hundred bytes each, results apart.

Runs that somebody waits for are kept, however many they are.
"""

LOOKED_AT = 10
"""Runs that are looked at, to be forgotten, each time that one is named: where many are waited for, it takes several."""

EXECUTIONS = 4
"""Executions kept per run: an older one was replaced by so many starts that nobody can still wait for it."""


class _Execution:
    __slots__ = ("latest", "seq", "start_id")

    def __init__(self, latest: Outcome) -> None:
        self.latest, self.seq = latest, 0
        self.start_id = ""
        """The start that it names as its own; one that names none goes on with an earlier one's (``start_of``)."""


class _Followed:
    """One run that somebody named: its last executions, and what starts of it were told."""

    __slots__ = ("answered", "before", "executions", "started_here", "told")

    def __init__(self) -> None:
        self.answered: Outcome | None = None
        self.executions: dict[int, _Execution] = {}
        self.told: dict[str, Outcome] = {}
        """By start: that it was refused, or, since it came again, how the run had ended by then."""
        self.started_here = False
        self.before = (0, "")
        """The latest execution that is kept no more and named its start, with that."""

    def start_of(self, execution: int) -> str:
        """The start that an execution goes back to: its own, or as a retry or by ContinueAsNew the last one's before it.

        Looked up each time, since the event that names it may come late: what is redriven comes after what followed it.
        """
        named = ((number, found.start_id) for number, found in self.executions.items() if found.start_id)
        return max((each for each in named if each[0] <= execution), default=self.before)[1]

    def answer(self, question: Question) -> Outcome | None:
        told = self.told.get(question.start_id)
        if told is not None and (told.status == REJECTED or told.execution >= max(self.executions, default=0)):
            return told
        if not question.start_id and self.answered is not None:
            # Of the run as it is, whatever was heard of it; not of what another start may be about to begin.
            latest = max(self.executions, default=0)
            return self.answered if self.answered.execution >= latest else self.executions[latest].latest
        if not self.executions:
            return None
        number = max(self.executions)
        newest = self.executions[number]
        if not question.start_id:
            return newest.latest
        own = [each for each in self.executions if self.start_of(each) == question.start_id]
        if not own and not self.start_of(number):
            # Its beginning was not heard, or does not say whose start it was: the newest is the best guess.
            return newest.latest
        return self.executions[max(own)].latest if own else told


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
        return self._wait(question, any_status=False)

    def known(self, question: Question) -> Future[Outcome]:
        """Done when any event of the execution was read."""
        return self._wait(question, any_status=True)

    def _wait(self, question: Question, *, any_status: bool) -> Future[Outcome]:
        future = self._waiting.add(question, any_status=any_status)
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
        for oldest in list(itertools.islice(self._followed, LOOKED_AT)):
            if len(self._followed) <= REMEMBERED or oldest == run_id:
                break
            if self._waiting.questions_about(oldest):
                self._followed.move_to_end(oldest)
            else:
                del self._followed[oldest]
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
            followed.told[event.about] = outcome
        return
    if event.type == "run.contended":
        return
    if event.type == "start.answered":
        followed.told[event.about] = outcome
        if outcome.status != REJECTED:
            followed.answered = outcome
        return
    execution = followed.executions.get(event.execution)
    if execution is None:
        execution = followed.executions[event.execution] = _Execution(outcome)
    if event.seq >= execution.seq:
        # What is redriven comes again after what followed it, and must not hide how the run has ended.
        execution.latest, execution.seq = outcome, event.seq
    if event.type == "run.started" and event.about:
        execution.start_id = event.about
    while len(followed.executions) > EXECUTIONS:
        oldest = min(followed.executions)
        if start_id := followed.executions.pop(oldest).start_id:
            followed.before = max(followed.before, (oldest, start_id))
