"""What both clients share: checking and encoding what is asked, and turning outcomes into results and errors."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from ductor_stream.client.ports import ClientLog, Feed
from ductor_stream.declarations import Signal, Workflow
from ductor_stream.definitions.policy import milliseconds
from ductor_stream.engine import values
from ductor_stream.engine.events import CommandKind, CommandReceived, OnConflict, RunStarted, SignalReceived
from ductor_stream.errors import (
    InvalidConfig,
    InvalidDefinition,
    InvalidValue,
    OutcomeError,
    RunCancelled,
    RunExists,
    RunFailed,
    RunTerminated,
    RunTimedOut,
)
from ductor_stream.outcomes import REJECTED, Outcome, Question, RunDescription
from ductor_stream.protocol.requests import Request, RequestEncoder

if TYPE_CHECKING:
    from ductor_stream.app import App

CLOSE_TIMEOUT_S = 10.0
"""How long closing a client waits for what it has sent: as long as a broker takes to elect another leader."""


class StartOptions(TypedDict, total=False):
    """How a run is started.

    ``run_id`` is its idempotency key: the same id is the same run (a random one if not given). ``start_id``
    dedupes this request (random if not given: give one to make a repeat of your own harmless with any
    ``on_conflict``). ``on_conflict`` says what happens when the run exists: ``use_existing`` (the default),
    ``reject``, ``restart_if_closed``, ``restart_if_failed``, ``terminate_existing``. ``version`` pins the run;
    a Workflow's own is the default, by name it is the last one declared. ``timeout`` bounds the whole run
    (timedelta or seconds). ``context`` are headers to carry along: ``traceparent`` and ``ductor-ctx-*``.
    """

    run_id: str
    start_id: str
    on_conflict: OnConflict
    version: str
    timeout: timedelta | float | None
    context: Mapping[str, str]


class Target(msgspec.Struct, frozen=True):
    """What a handle stands for. ``workflow`` is None where only a name is known."""

    question: Question
    workflow: Workflow[Any, Any] | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.question.run_id


class Core:
    """The decisions of a client, without asyncio. Safe to use from any thread."""

    def __init__(self, app: App | None, encoder: RequestEncoder, log: ClientLog, feed: Feed) -> None:
        self._app = app
        self._encoder = encoder
        self._log = log
        self._feed = feed

    # -- out --------------------------------------------------------------------------------

    def start(
        self, workflow: Workflow[Any, Any] | str, input: Any, options: StartOptions
    ) -> tuple[Target, Future[None]]:
        """Send a start; the future is done when the broker has it. Raises InvalidValue, PayloadTooLarge."""
        for name in options:
            if name not in StartOptions.__annotations__:
                raise TypeError(f"start() got an unexpected keyword argument {name!r}")
        on_conflict = options.get("on_conflict", "use_existing")
        run_id = options.get("run_id") or uuid.uuid4().hex
        start_id = options.get("start_id") or uuid.uuid4().hex
        declared = workflow if isinstance(workflow, Workflow) else self._declared(workflow, options.get("version"))
        request = RunStarted(
            workflow=workflow.name if isinstance(workflow, Workflow) else workflow,
            version=options.get("version") or (workflow.version if isinstance(workflow, Workflow) else ""),
            input=declared.encode_input(input) if declared else values.encode(input, "input"),
            start_id=start_id,
            on_conflict=on_conflict,
            run_timeout_ms=_timeout_ms(options.get("timeout")),
            context=dict(options.get("context", {})),
        )
        # A start that uses what exists asks for the run as it is; any other for what it has begun itself.
        question = Question(run_id, "" if on_conflict == "use_existing" else start_id)
        record = self._encoder.encode(run_id, request)
        self._feed.expect(question)
        return Target(question, declared), self._log.send(record)

    def signal(self, run_id: str, signal: Signal[Any] | str, payload: Any, signal_id: str | None) -> Future[None]:
        """Send a signal. Raises InvalidValue when the payload does not fit, PayloadTooLarge."""
        known = signal if isinstance(signal, Signal) else self._app.signals.get(signal) if self._app else None
        name = signal.name if isinstance(signal, Signal) else signal
        raw = known.encode(payload) if known else values.encode(payload, "payload")
        return self._send(run_id, SignalReceived(signal_id or uuid.uuid4().hex, name, raw))

    def command(
        self,
        run_id: str,
        kind: CommandKind,
        reason: str,
        command_id: str | None,
        to_node: str | None = None,
        to_transition: int | None = None,
    ) -> Future[None]:
        """Send an order; ``to_node`` and ``to_transition`` are for a reset alone."""
        return self._send(run_id, CommandReceived(kind, command_id or uuid.uuid4().hex, reason, to_node, to_transition))

    def _send(self, run_id: str, request: Request) -> Future[None]:
        return self._log.send(self._encoder.encode(run_id, request))

    def _declared(self, name: str, version: str | None) -> Workflow[Any, Any] | None:
        """The app's workflow of that name, to check the input against; None where this process does not know it."""
        if self._app is None:
            return None
        try:
            return self._app.workflows.get((name, version or self._app.default_version(name)))
        except KeyError:
            return None

    # -- in ---------------------------------------------------------------------------------

    def target(self, run_id: str, workflow: Workflow[Any, Any] | None) -> Target:
        """A handle's target for a run that somebody else started."""
        return Target(Question(run_id), workflow)

    def outcome(self, target: Target) -> Future[Outcome]:
        """Done when the run has ended. Raises InvalidConfig where only a database could tell."""
        self._need_to_know(target)
        return self._feed.outcome(target.question)

    def known(self, target: Target) -> Future[Outcome]:
        """Done as soon as anything is known of the run. Raises InvalidConfig where only a database could tell."""
        self._need_to_know(target)
        return self._feed.known(target.question)

    def _need_to_know(self, target: Target) -> None:
        if not self._feed.can_tell(target.question):
            raise InvalidConfig(
                f"run {target.run_id!r} was not started by this client: what became of it is in the database; "
                "set DUCTOR_DATABASE_URL"
            )

    def description(self, outcome: Outcome) -> RunDescription:
        """The run as it is. Raises RunExists when its start was refused."""
        if outcome.status == REJECTED:
            raise _ended(outcome)
        reason = outcome.reason or (outcome.failure.message if outcome.failure else "")
        return RunDescription(
            outcome.run_id, outcome.status, outcome.execution, outcome.workflow, outcome.version, reason
        )

    def unheard(self, target: Target, timeout: float) -> TimeoutError:
        """The error of a question that nothing could answer yet."""
        return TimeoutError(
            f"nothing is known of run {target.run_id} after {timeout} s: was it started, and is a coordinator running?"
        )

    def result(self, target: Target, outcome: Outcome) -> Any:
        """The workflow's result, or the OutcomeError that says how else the run ended."""
        if outcome.status != "completed":
            raise _ended(outcome)
        workflow = target.workflow
        if workflow is None and self._app is not None:
            workflow = self._app.workflows.get((outcome.workflow, outcome.version))
        type = workflow.definition.output_type if workflow else Any
        return values.decode(outcome.result or b"null", type, f"result of {target.run_id}")

    def overdue(self, target: Target, timeout: float | None) -> TimeoutError:
        """The error of a wait that took too long, with what was last heard of the run."""
        latest = self._feed.latest(target.question)
        if latest is None:
            heard = "nothing was heard of it yet: is a coordinator running?"
        else:
            heard = f"it is {latest.status}{f': {latest.reason}' if latest.reason else ''}"
        return TimeoutError(f"run {target.run_id} did not end within {timeout} s; {heard}")

    def close(self) -> None:
        """Wait for what was sent, then let go of everything."""
        self._log.close(CLOSE_TIMEOUT_S)
        self._feed.close()


_ERRORS: Mapping[str, type[OutcomeError]] = {
    "failed": RunFailed,
    "cancelled": RunCancelled,
    "terminated": RunTerminated,
    "timed_out": RunTimedOut,
    REJECTED: RunExists,
}


def _ended(outcome: Outcome) -> OutcomeError:
    failure = outcome.failure
    if outcome.status == REJECTED:
        said = f"a run {outcome.run_id} exists"
    elif failure is not None:
        said = f"{failure.type}: {failure.message}" if failure.message else failure.type
    else:
        said = outcome.reason or f"run {outcome.run_id} was {outcome.status.replace('_', ' ')}"
    details = values.decode(failure.details, Any) if failure and failure.details else None
    error_type = failure.type if failure else ""
    return _ERRORS[outcome.status](said, run_id=outcome.run_id, error_type=error_type, details=details)


def _timeout_ms(timeout: timedelta | float | None) -> int | None:
    try:
        return None if timeout is None else milliseconds(timeout, "timeout")
    except InvalidDefinition as error:
        raise InvalidValue(str(error)) from error
