"""Every error of ductor_stream, grouped by what the reader should do about it.

::

    DuctorError
    ├ UsageError          tell the caller        invalid definition, run not found, payload too large
    ├ OutcomeError        report it              run failed, cancelled, terminated, timed out
    ├ ConflictError       reload or drop         record version conflict, ownership lost
    ├ TransientError      retry with backoff     store unavailable, log unavailable
    ├ DataError           dead-letter it         undecodable or refused record
    └ InvariantViolation  our bug                stop that partition, loudly

Beside the tree stand the errors that users raise and catch in their own code:
``TerminalError`` and ``RetryableError`` in steps, ``StepError`` (with ``StepTimeout``
and ``StepCancelled``) and ``ChildError`` in workflows. Each class carries a stable ``code``;
``docs/errors/<code>.md`` tells what to do. Codes that are no classes have sections in ``docs/errors/codes``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar


class DuctorError(Exception):
    """Base of all errors that this library raises about itself."""

    code: ClassVar[str] = "ductor"


# -- UsageError: tell the caller ------------------------------------------------------------


class UsageError(DuctorError):
    """The caller asked for something that cannot be; the message names the field and the remedy."""

    code = "usage"


class InvalidDefinition(UsageError):
    """A workflow, step or signal is declared in a way that cannot work."""

    code = "invalid_definition"


class InvalidConfig(UsageError):
    """A configuration key is unknown, missing, or would break a rule."""

    code = "invalid_config"


class InvalidValue(UsageError):
    """A value does not fit its annotation; the message has the path to the field."""

    code = "invalid_value"


class PayloadTooLarge(UsageError):
    """A payload is over the limit of the wire contract (900,000 bytes encoded)."""

    code = "payload_too_large"


class RunNotFound(UsageError):
    """No run of that id is known."""

    code = "run_not_found"


class SchemaMismatch(UsageError):
    """The database schema is too old or too new for this release; the message has the command that mends it."""

    code = "schema_mismatch"


class TopicsNotReady(UsageError):
    """Topics are missing, not co-partitioned, or have fewer partitions than the namespace was created with."""

    code = "topics_not_ready"


class OutsideWorld(UsageError, RuntimeError):
    """Workflow code reached for sockets, files, threads or subprocesses: do this in a step."""

    code = "outside_world"


class CalledOutsideStep(UsageError, RuntimeError):
    """A step was called directly in a workflow, or a step-only function outside an attempt."""

    code = "called_outside_step"


class DevStackError(UsageError):
    """The embedded Kafka or Postgres could not be installed, started or found."""

    code = "dev_stack"


# -- OutcomeError: report it ----------------------------------------------------------------


class OutcomeError(DuctorError):
    """A run ended in a way other than a result. ``run_id`` names it, ``error_type`` is the user's error type."""

    code = "outcome"

    def __init__(self, message: str, *, run_id: str = "", error_type: str = "", details: Any = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.error_type = error_type
        self.details = details


class RunFailed(OutcomeError):
    """The run failed."""

    code = "run_failed"


class RunCancelled(OutcomeError):
    """The run was cancelled, and its cleanup has run."""

    code = "run_cancelled"


class RunTerminated(OutcomeError):
    """The run was terminated at once, without cleanup."""

    code = "run_terminated"


class RunTimedOut(OutcomeError):
    """The run did not end within its own timeout."""

    code = "run_timed_out"


class RunExists(OutcomeError):
    """A start with ``on_conflict="reject"`` found a run of that id."""

    code = "run_exists"


# -- ConflictError: reload or drop ----------------------------------------------------------


class ConflictError(DuctorError):
    """Somebody else got there first: reload, or let go."""

    code = "conflict"


class RecordVersionConflict(ConflictError):
    """Runs whose ``record_version`` was not what was read; nothing of the batch was committed (R3)."""

    code = "record_version_conflict"

    def __init__(self, run_ids: frozenset[str], *, locked: bool = False) -> None:
        what = "rows are kept locked of" if locked else "record_version moved under"
        super().__init__(f"{what} {len(run_ids)} run(s): {', '.join(sorted(run_ids)[:3])}")
        self.run_ids = run_ids
        self.locked = locked
        """Their rows are in another session's hands: it was waited for, and to try again at once would only wait again."""


class OwnershipLost(ConflictError):
    """Partitions whose token, epoch or offsets are no longer ours; nothing of the batch was committed (R3)."""

    code = "ownership_lost"

    def __init__(self, partitions: frozenset[int]) -> None:
        super().__init__(f"ownership lost of partition(s) {', '.join(map(str, sorted(partitions)))}")
        self.partitions = partitions


# -- TransientError: retry with backoff -----------------------------------------------------


class TransientError(DuctorError):
    """The outside is away for a moment; nothing is lost, try again."""

    code = "transient"


class StoreUnavailable(TransientError):
    """Postgres cannot be reached, and nothing was committed."""

    code = "store_unavailable"


class CommitOutcomeUnknown(TransientError):
    """The connection broke during a commit: take the partitions anew, never resubmit (protocol 3)."""

    code = "commit_outcome_unknown"


class LogUnavailable(TransientError):
    """Kafka cannot be reached."""

    code = "log_unavailable"


# -- DataError: dead-letter it --------------------------------------------------------------


class DataError(DuctorError):
    """A record that cannot be applied, ever. ``reason`` is the word in the header ``ductor-reason``."""

    code = "data"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PoisonedRun(DataError):
    """A statement failed for all because of one run's data; the batch was rolled back."""

    code = "poisoned_run"

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__("poisoned_run", message)
        self.run_id = run_id


# -- InvariantViolation: our bug ------------------------------------------------------------


class InvariantViolation(DuctorError):
    """Something that cannot happen did: stop that partition, loudly."""

    code = "invariant_violation"


# -- What users raise in steps --------------------------------------------------------------


class TerminalError(Exception):
    """Raise in a step: the attempt failed and is not to be tried again.

    ``type`` is what workflow code matches as ``StepError.type``; ``details`` is any JSON value.
    """

    def __init__(self, message: str = "", *, type: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.type = type or self.__class__.__name__
        self.details = details


class RetryableError(Exception):
    """Raise in a step: try again by the retry policy, at the earliest after ``retry_after`` (timedelta or seconds)."""

    def __init__(
        self,
        message: str = "",
        *,
        type: str | None = None,
        retry_after: timedelta | float | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.type = type or self.__class__.__name__
        self.retry_after = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        self.details = details


# -- What users catch in workflows ----------------------------------------------------------


class StepError(Exception):
    """A step failed for good. Match ``type`` (the user's), not a class: exception classes do not cross processes.

    ``error_code`` is one of the codes of the wire contract, ``attempts`` how often it was tried.
    """

    def __init__(self, message: str, *, type: str, error_code: str, details: Any = None, attempts: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.type = type
        self.error_code = error_code
        self.details = details
        self.attempts = attempts


class ChildError(Exception):
    """A child run ended without a result. ``status`` is its terminal status, or ``refused``; ``type`` the user's type."""

    def __init__(self, message: str, *, run_id: str, status: str, type: str = "", details: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.run_id = run_id
        self.status = status
        self.type = type or status
        self.details = details


class StepTimeout(StepError):
    """One of a step's own timeouts passed, or its worker was lost, and no try is left."""


class StepCancelled(StepError):
    """The worker reported the attempt as cancelled, and the workflow had not asked for it."""
