"""Events: what makes a run advance. Frozen values, stored in the run's history as they are."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

OnConflict = Literal["use_existing", "reject", "restart_if_closed", "restart_if_failed", "terminate_existing"]
CommandKind = Literal["cancel", "terminate", "pause", "resume", "retry", "reset"]
AttemptOutcome = Literal["completed", "failed", "cancelled", "rejected"]

CONDEMNED: Final = ("conflict_livelock", "history_limit", "poisoned", "stuck", "tick_failed")
"""``code`` of a ``Condemned``: why a run was failed by force."""

RUN_CODES: Final = ("child", "child_exists", "timeout_run", *CONDEMNED)
"""``code`` of a run's ``Failure``, beside those of its attempts: each has its section in docs/errors/codes/runs.md."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt, a node or a run failed. ``code`` is of the wire contract, ``type`` is the user's word.

    ``details`` is a JSON document as bytes. ``retry_after_ms`` overrides the policy's delay.
    """

    code: str
    type: str
    message: str
    retryable: bool = True
    retry_after_ms: int | None = None
    details: bytes | None = None
    stack: str | None = None


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all events."""


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """The node of a run that awaits a child run."""

    run_id: str
    execution: int
    node_id: str


class RunStarted(Event, frozen=True, tag="start"):
    """Somebody asked for a run. ``input`` is JSON (``b"null"`` without any), ``context`` the headers to carry along.

    ``start_id`` is the id that dedupes the request; ``version`` is what the owner resolved it to; ``parent`` awaits
    the outcome. ``since`` (0: never) says that this node has had the run for its child since that execution of the parent,
    which was retried: the run goes on, or says how it has ended.
    """

    workflow: str
    version: str
    input: bytes
    start_id: str
    on_conflict: OnConflict = "use_existing"
    run_timeout_ms: int | None = None
    context: dict[str, str] = {}
    parent: Parent | None = None
    since: int = 0


class StartRepeated(Event, frozen=True, tag="start_repeated"):
    """A start came again that was applied, or ``refused``, before. It changes nothing, and is in no history."""

    start_id: str
    refused: bool


class CarriedSignal(msgspec.Struct, frozen=True, array_like=True):
    """A signal that the last execution did not take."""

    signal_id: str
    name: str
    payload: bytes


class Continuation(Event, frozen=True):
    """The next execution of a run begins, by ContinueAsNew, with what the last one handed on."""

    workflow: str
    version: str
    input: bytes
    signals: list[CarriedSignal]
    run_due_at: int | None
    context: dict[str, str]
    parent: Parent | None
    cancel_requested: bool = False


class Continued(Continuation, frozen=True, tag="continued"):
    """A continuation that is complete in itself. ``run_timeout_ms`` is what ``run_due_at`` was set by: a retry has it anew."""

    run_timeout_ms: int | None = None


class ContinuedInPlace(Continuation, frozen=True, tag="continued_in_place"):
    """As ``Continued``, but the signals are not stored with it again: they stand in the records before it.

    In memory they are in ``signals`` all the same. ``span`` says about how many bytes the records of earlier executions take
    that are needed for them: from the last one on that began with a copy of its signals (which does not count), or without any.
    """

    span: int = 0
    run_timeout_ms: int | None = None


class Forked(Event, frozen=True, tag="forked"):
    """A retry or reset: the next execution keeps the records of another one up to ``upto`` (its ``seq``).

    ``signals`` came after that, and are told again. Who awaits the outcome (``parent``), and the ``version`` that is pinned,
    are as they stand now.
    """

    from_execution: int
    upto: int
    kind: CommandKind
    command_id: str
    reason: str
    signals: list[CarriedSignal]
    parent: Parent | None = None
    version: str = ""


class Proceed(Event, frozen=True, tag="proceed"):
    """The run has been told to go on: the planner hears what is held (after ContinueAsNew)."""

    execution: int


class ChildFinished(Event, frozen=True, tag="child"):
    """A child run has ended. ``status`` is its terminal status, or ``refused`` when it was never started."""

    execution: int
    node_id: str
    child_run_id: str
    status: str
    result: bytes | None = None
    failure: Failure | None = None


class AttemptFinished(Event, frozen=True, tag="finish"):
    """A worker reported the outcome of an attempt. ``output`` is JSON; times are the worker's, for people only.

    ``details`` is what its last heartbeat said (JSON), as far as the owner heard: the next attempt gets it.
    """

    execution: int
    node_id: str
    generation: int
    outcome: AttemptOutcome
    output: bytes | None = None
    failure: Failure | None = None
    worker: str = ""
    started_at: str = ""
    finished_at: str = ""
    details: bytes | None = None


class AttemptTimedOut(Event, frozen=True, tag="overdue"):
    """The owner gave an attempt up; ``code`` is one of the wire contract's time-outs, heartbeat_lost, worker_lost, dispatch_lost."""

    execution: int
    node_id: str
    generation: int
    code: str
    details: bytes | None = None


class AttemptLost(Event, frozen=True, tag="lost"):
    """The task of an attempt is gone, and nobody was heard to have begun it: it is to be sent again (R9)."""

    execution: int
    node_id: str
    generation: int


class TimerFired(Event, frozen=True, tag="timer"):
    """A durable timer of the run came due: a sleep, a timeout, or the back-off before a retry."""

    execution: int
    node_id: str
    generation: int


class RunTimedOut(Event, frozen=True, tag="run_overdue"):
    """The run's own timeout passed."""

    execution: int


class SignalReceived(Event, frozen=True, tag="signal"):
    """A signal for the run; ``payload`` is JSON. Deduplicated by ``signal_id`` before it reaches a tick."""

    signal_id: str
    name: str
    payload: bytes


class CommandReceived(Event, frozen=True, tag="command"):
    """An order from outside, or from the run that had started this one (``parent``). Deduplicated by ``command_id``.

    A reset goes back to where ``to_node`` was created, or to where ``to_transition`` (a ``seq`` of its history) had left
    the run.
    """

    kind: CommandKind
    command_id: str
    reason: str = ""
    to_node: str | None = None
    to_transition: int | None = None
    parent: Parent | None = None


class Redeployed(Event, frozen=True, tag="redeploy"):
    """The owner has other code (named by its digest) for a suspended run: try again.

    ``version`` is pinned now, if the run began where its workflow was not known.
    """

    digest: str
    version: str


class Condemned(Event, frozen=True, tag="condemned"):
    """The run cannot make progress and is failed by force, visibly (R9). ``code`` and ``message`` say why."""

    code: str
    message: str


AnyEvent = (
    RunStarted
    | StartRepeated
    | AttemptFinished
    | AttemptTimedOut
    | AttemptLost
    | TimerFired
    | RunTimedOut
    | SignalReceived
    | CommandReceived
    | Redeployed
    | Condemned
    | Continued
    | ContinuedInPlace
    | Forked
    | Proceed
    | ChildFinished
)
