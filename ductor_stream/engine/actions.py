"""Actions: what a tick wants done. Rows are written with the commit, messages go out after it (R4)."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from ductor_stream.engine.events import AttemptFinished, AttemptTimedOut, ChildFinished, Failure, OnConflict, Parent
from ductor_stream.engine.state import Node

LifecycleType = Literal[
    "run.started",
    "run.suspended",
    "run.resumed",
    "run.paused",
    "run.continued",
    "run.redriven",
    "run.contended",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.terminated",
    "run.timed_out",
    "command.rejected",
    "start.answered",
]

Refusal = Literal[
    "cancel_requested_already",
    "node_not_found",
    "nothing_to_retry",
    "run_closed",
    "run_exists",
    "run_is_paused",
    "run_is_running",
    "run_not_failed",
    "transition_not_found",
]
REFUSALS: Final[tuple[str, ...]] = get_args(Refusal)
"""``code`` of a ``command.rejected``: each has its section in docs/errors/codes/refusals.md."""


class DispatchAttempt(msgspec.Struct, frozen=True, gc=False):
    """Send this attempt of the node to its queue, and record that it was dispatched; ``again``: it was so before."""

    execution: int
    node: Node
    again: bool = False


class CloseAttempt(msgspec.Struct, frozen=True, gc=False):
    """Record how an attempt ended. ``node`` is as it was before; the report may be a worker's or the owner's own."""

    execution: int
    node: Node
    report: AttemptFinished | AttemptTimedOut


class RecordLate(msgspec.Struct, frozen=True, gc=False):
    """A result whose fence is not current: record it as late, change nothing (R8)."""

    report: AttemptFinished


class StopAttempt(msgspec.Struct, frozen=True, gc=False):
    """Tell the worker of a superseded or unwanted attempt to stop (best effort)."""

    execution: int
    node: Node
    reason: str


class EmitLifecycle(msgspec.Struct, frozen=True, gc=False):
    """Publish a lifecycle event. ``seq`` is dense per run; ``about`` is the start or command id of a rejection.

    ``start.answered`` tells a start that uses what exists, or comes again, how that has ended (``status``), or that it
    was refused before (``rejected``); ``run.contended`` that the run has lost version checks. They change nothing, so
    they have no number of their own: they repeat the last one.
    """

    type: LifecycleType
    execution: int
    seq: int
    now: int
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    about: str = ""
    status: str = ""


class StartChild(msgspec.Struct, frozen=True, gc=False):
    """Start the child run that this node awaits (or, detached, does not).

    ``anew``: where an earlier execution of this run had the node, its child may stand there under the same id. If it has
    ended, it begins its next execution. ``since``: one that an execution from that on has begun goes on (see ``RunStarted``).
    """

    execution: int
    node: Node
    anew: bool = False
    since: int = 0

    @property
    def on_conflict(self) -> OnConflict:
        """What becomes of a run that has the id already."""
        return "restart_if_closed" if self.anew else "use_existing"


class CommandChild(msgspec.Struct, frozen=True, gc=False):
    """The node's child run is no longer awaited: cancel or terminate it."""

    execution: int
    node: Node
    kind: Literal["cancel", "terminate"]
    reason: str


class TellParent(msgspec.Struct, frozen=True, gc=False):
    """Tell the run that awaits this one how it ended. ``child_execution`` is the execution that did."""

    parent: Parent
    child_execution: int
    event: ChildFinished


Action = (
    DispatchAttempt | CloseAttempt | RecordLate | StopAttempt | EmitLifecycle | StartChild | CommandChild | TellParent
)
