"""``SyncRunHandle``: one run, as code without asyncio sees it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, overload

from ductor_stream.client.core import Core, Target
from ductor_stream.declarations import Signal
from ductor_stream.outcomes import RunDescription

T = TypeVar("T")
Out = TypeVar("Out")


class SyncRunHandle(Generic[Out]):
    """A run, by its id. The same as ``RunHandle``, each call waits."""

    def __init__(self, core: Core, target: Target) -> None:
        self._core = core
        self._target = target

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._target.run_id

    @overload
    def signal(self, signal: Signal[T], payload: T, *, signal_id: str | None = None) -> None: ...
    @overload
    def signal(self, signal: str, payload: Any = None, *, signal_id: str | None = None) -> None: ...
    def signal(self, signal: Signal[Any] | str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send a signal; see ``RunHandle.signal``."""
        self._core.signal(self.run_id, signal, payload, signal_id).result()

    def cancel(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Ask the run to end: CancelledError is raised at its awaits, its cleanup runs."""
        self._core.command(self.run_id, "cancel", reason, command_id).result()

    def terminate(self, reason: str = "", *, command_id: str | None = None) -> None:
        """End the run at once, without its cleanup."""
        self._core.command(self.run_id, "terminate", reason, command_id).result()

    def pause(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Let the run decide nothing more until it is resumed; attempts that are out go on."""
        self._core.command(self.run_id, "pause", reason, command_id).result()

    def resume(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Let a paused or suspended run go on."""
        self._core.command(self.run_id, "resume", reason, command_id).result()

    def retry(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Try again what the run failed at, with all its results before that, as a new execution.

        Until that has begun, ``result`` still tells the old failure.
        """
        self._core.command(self.run_id, "retry", reason, command_id).result()

    def reset(
        self,
        to_node: str | None = None,
        reason: str = "",
        *,
        to_transition: int | None = None,
        command_id: str | None = None,
    ) -> None:
        """Go back to where the node was created, or to where the transition (a ``seq`` of the run's history) had left it,
        and run on from there, as a new execution. Raises InvalidValue unless it is one of them.
        """
        self._core.command(self.run_id, "reset", reason, command_id, to_node, to_transition).result()

    def describe(self, timeout: float = 10.0) -> RunDescription:
        """The run as it is; see ``RunHandle.describe``."""
        future = self._core.known(self._target)
        try:
            return self._core.description(future.result(timeout))
        except TimeoutError:
            future.cancel()
            raise self._core.unheard(self._target, timeout) from None

    def result(self, timeout: float | None = None) -> Out:
        """Wait at most ``timeout`` seconds for the run to end, and give its result; see ``RunHandle.result``."""
        future = self._core.outcome(self._target)
        try:
            outcome = future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise self._core.overdue(self._target, timeout) from None
        return cast(Out, self._core.result(self._target, outcome))
