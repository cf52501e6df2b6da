"""What users declare, as the engine sees it: values without any outside world."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

DEFAULT_QUEUE = "default"
WORKER_HEARTBEAT_MS = 10_000


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True, rename={"max_attempts": "n", "initial_ms": "i"}):
    """When a failed attempt is tried again: after ``initial_ms * factor ** (attempt - 1)``, at most ``maximum_ms``.

    ``jitter`` spreads the delay by that share to both sides. ``max_attempts`` counts the first try;
    error types in ``non_retryable`` are never tried again.
    """

    max_attempts: int = 10
    initial_ms: int = 1_000
    factor: float = 2.0
    maximum_ms: int = 60_000
    jitter: float = 0.2
    non_retryable: tuple[str, ...] = ()

    def delay_ms(self, attempt: int, spread: float) -> int:
        """Milliseconds to wait after the failure of ``attempt`` (1 is the first); ``spread`` is in [0, 1)."""
        try:
            grown = self.initial_ms * self.factor ** (attempt - 1)
        except OverflowError:
            # 2.0 ** 1024 is beyond a float, and so beyond any maximum.
            grown = self.maximum_ms
        return int(min(grown, self.maximum_ms) * (1 + self.jitter * (2 * spread - 1)))


class StepOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the attempts of a node are queued, timed and retried. Durations are milliseconds, None is no limit."""

    queue: str = DEFAULT_QUEUE
    start_to_close_ms: int = 600_000
    schedule_to_start_ms: int | None = None
    schedule_to_close_ms: int | None = None
    heartbeat_ms: int | None = None
    retry: RetryPolicy = RetryPolicy()

    @property
    def silence_ms(self) -> int:
        """After how long without a heartbeat the attempt is given up (wire.md: never null)."""
        return self.heartbeat_ms if self.heartbeat_ms is not None else WORKER_HEARTBEAT_MS


class ChildOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a child run is started. ``parent_close`` says what becomes of it when its parent no longer awaits it.

    An empty ``version`` is the last one declared where the child is started. ``detached``: started, never awaited.
    """

    run_id: str
    version: str = ""
    parent_close: Literal["cancel", "terminate", "abandon"] = "cancel"
    detached: bool = False


class WorkflowDefinition(msgspec.Struct, frozen=True):
    """A durable function under a name and a version. ``digest`` names the code: other code, other digest."""

    name: str
    version: str
    function: Callable[..., Coroutine[Any, Any, Any]]
    input_type: Any
    output_type: Any
    takes_input: bool
    digest: str
    fails_on: tuple[type[BaseException], ...] = ()
    run_timeout_ms: int | None = None


class StepDefinition(msgspec.Struct, frozen=True):
    """A step as a workflow sees it. ``bind(args, kwargs)`` gives its input: a JSON array of the positional arguments.

    ``bind`` raises TypeError as a wrong call would, and InvalidValue with the path to a field that does not fit.
    ``value_of`` makes the workflow's value of the decoded output (a rule's verdict has more than that); None: it is it.
    """

    name: str
    options: StepOptions
    bind: Callable[[tuple[Any, ...], dict[str, Any]], bytes]
    output_type: Any
    value_of: Callable[[Any], Any] | None = None


class SignalDefinition(msgspec.Struct, frozen=True):
    """A signal's name and the type of its payload."""

    name: str
    payload_type: Any
