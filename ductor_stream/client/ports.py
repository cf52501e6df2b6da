"""What a client needs of the outside: a log to send to, and somewhere to learn what became of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ductor_stream.outcomes import Outcome, Question
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent


class ClientLog(Protocol):
    """Kafka as a client needs it. Safe to use from any thread."""

    def send(self, record: Outgoing) -> Future[None]:
        """Produce a record; done when all in-sync replicas have it.

        The future raises LogUnavailable (it may have landed all the same: sending it again with the same id is
        safe), TopicsNotReady, PayloadTooLarge.
        """

    def follow(self, heard: Callable[[LifecycleEvent], None]) -> None:
        """From now on hand every lifecycle event since the log was opened to ``heard``, in order per run.

        Called once. ``heard`` is called in a thread of the log.
        """

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for outstanding acknowledgements, then close."""


class RunReader(Protocol):
    """Postgres as a client needs it. Used by one thread at a time."""

    def outcomes(self, questions: Sequence[Question]) -> Mapping[Question, Outcome]:
        """What is known; a run or a start that has not been applied yet is not in the answer.

        Raises StoreUnavailable, SchemaMismatch.
        """

    def close(self) -> None:
        """Close the connection."""


class Feed(Protocol):
    """Where outcomes come from. Safe to use from any thread."""

    def expect(self, question: Question) -> None:
        """Called before the start is sent, so that nothing of it is missed."""

    def outcome(self, question: Question) -> Future[Outcome]:
        """Done when the execution has ended, or the start was refused."""

    def known(self, question: Question) -> Future[Outcome]:
        """Done as soon as anything is known of the execution, or the start was refused."""

    def latest(self, question: Question) -> Outcome | None:
        """What was last heard, without asking again."""

    def can_tell(self, question: Question) -> bool:
        """Whether it can learn the outcome at all: without a database, a run from before the client cannot be known."""

    def close(self) -> None:
        """Stop; whoever still waits gets an error."""
