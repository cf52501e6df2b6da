"""What became of a run, as clients ask for it: the values between a client and whoever can tell."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.events import Failure

REJECTED = "rejected"
"""As an outcome's status: the start was refused, a run of that id exists."""


class Question(msgspec.Struct, frozen=True):
    """Whose outcome is asked for: of the run as it is, or of the execution that this start began."""

    run_id: str
    start_id: str = ""


class RunDescription(msgspec.Struct, frozen=True):
    """A run as it is: ``status`` is running, paused, suspended, or how it has ended; ``reason`` says why, where there is one."""

    run_id: str
    status: str
    execution: int
    workflow: str
    version: str
    reason: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What is known of an execution. ``status`` is one of the status words, or ``REJECTED``; ``result`` is JSON."""

    run_id: str
    execution: int
    status: str
    workflow: str = ""
    version: str = ""
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
