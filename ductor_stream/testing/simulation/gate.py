"""Where the memory ports ask whether a call may happen: the one seam through which a simulation injects its faults."""

from __future__ import annotations

from typing import Literal

from ductor_stream.ports import Batch

Outcome = Literal["lands", "refused", "conflict", "poisoned", "unknown_landed", "unknown_lost", "unknown_late"]
"""What becomes of a commit. ``poisoned``: data of its first run cannot be stored. ``unknown_late``: it is in the server's hands, and is executed after its client gave up."""


class Crash(BaseException):
    """The process dies here. No code of it runs any more (it is no Exception, so nobody handles it)."""

    def __init__(self, process: str, where: str) -> None:
        super().__init__(f"{process} crashed at {where}")
        self.process = process


class Gate:
    """Lets everything pass: what contract tests and users need. A simulation overrides it."""

    def enter(self, call: str) -> None:
        """A port call is about to take effect. May raise Crash, StoreUnavailable, LogUnavailable."""

    def leave(self, call: str) -> None:
        """The call has taken effect, and its caller does not know it yet. May raise Crash."""

    def outcome(self, batch: Batch) -> Outcome:
        """What becomes of this commit."""
        return "lands"

    def idle(self, seconds: float) -> None:
        """A poll found nothing; the caller would wait so long."""

    def share(self, available: int) -> int:
        """How many of the records that could be read come with this poll."""
        return available

    def delivers(self) -> bool:
        """Whether the broker answers for everything that was produced as soon as it is asked (else others decide)."""
        return True
