"""``RunHandle``: one run, as code with asyncio sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from ductor_stream.client.core import Core, Target
from ductor_stream.declarations import Signal
from ductor_stream.outcomes import RunDescription

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
Out = TypeVar("Out")


class RunHandle(Generic[Out]):
    """A run, by its id. Requests return when the broker has them, not when they are applied.

    Each raises LogUnavailable when the broker does not answer; then it may have been taken all the same.
    """

    def __init__(self, core: Core, target: Target) -> None:
        self._core = core
        self._target = target

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._target.run_id

    @overload
    async def signal(self, signal: Signal[T], payload: T, *, signal_id: str | None = None) -> None: ...
    @overload
    async def signal(self, signal: str, payload: Any = None, *, signal_id: str | None = None) -> None: ...
    async def signal(self, signal: Signal[Any] | str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send a signal; the workflow gets each ``signal_id`` once (a random one if not given).

        Raises InvalidValue when the payload does not fit the signal's type, PayloadTooLarge.
        """
        await acknowledged(self._core.signal(self.run_id, signal, payload, signal_id))

    async def cancel(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Ask the run to end: CancelledError is raised at its awaits, its cleanup runs."""
        await acknowledged(self._core.command(self.run_id, "cancel", reason, command_id))

    async def terminate(self, reason: str = "", *, command_id: str | None = None) -> None:
        """End the run at once, without its cleanup."""
        await acknowledged(self._core.command(self.run_id, "terminate", reason, command_id))

    async def pause(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Let the run decide nothing more until it is resumed; attempts that are out go on."""
        await acknowledged(self._core.command(self.run_id, "pause", reason, command_id))

    async def resume(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Let a paused or suspended run go on."""
        await acknowledged(self._core.command(self.run_id, "resume", reason, command_id))

    async def retry(self, reason: str = "", *, command_id: str | None = None) -> None:
        """Try again what the run failed at, with all its results before that, as a new execution.

        Until that has begun, ``result`` still tells the old failure.
        """
        await acknowledged(self._core.command(self.run_id, "retry", reason, command_id))

    async def reset(
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
        await acknowledged(self._core.command(self.run_id, "reset", reason, command_id, to_node, to_transition))

    async def describe(self, timeout: float = 10.0) -> RunDescription:
        """Whether the run is under way, paused or suspended, or how it has ended; in which execution, and why.

        With a database from its row; without one from the latest event that was heard. Waits at most ``timeout``
        seconds for a run that was just started. Raises RunExists when its start was refused, TimeoutError when nothing
        is known of it, InvalidConfig as ``result``.
        """
        waiting = asyncio.wrap_future(self._core.known(self._target))
        try:
            return self._core.description(await asyncio.wait_for(waiting, timeout))
        except TimeoutError:
            raise self._core.unheard(self._target, timeout) from None

    async def result(self, timeout: float | None = None) -> Out:
        """Wait at most ``timeout`` seconds for the run to end, and give its result.

        Raises RunFailed, RunCancelled, RunTerminated, RunTimedOut, or RunExists when its start was refused;
        TimeoutError, with what was last heard of the run; InvalidConfig for a run that was not started by
        this client, where no database is configured.
        """
        waiting = asyncio.wrap_future(self._core.outcome(self._target))
        try:
            outcome = await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            raise self._core.overdue(self._target, timeout) from None
        return cast(Out, self._core.result(self._target, outcome))


async def acknowledged(sent: Future[None]) -> None:
    """Wait for the broker. Giving up waiting does not take the record back."""
    await asyncio.shield(asyncio.wrap_future(sent))
