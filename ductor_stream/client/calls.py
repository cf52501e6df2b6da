"""What a client can be asked, with and without asyncio. ``wiring`` adds how one is opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ductor_stream.client.core import Core, StartOptions
from ductor_stream.client.handle import RunHandle, acknowledged
from ductor_stream.client.sync import SyncRunHandle
from ductor_stream.declarations import Workflow
from ductor_stream.errors import UsageError

if TYPE_CHECKING:
    from typing import Unpack

In = TypeVar("In")
Out = TypeVar("Out")


class Opened:
    """Something with a core while it is open."""

    _core: Core | None = None

    @property
    def core(self) -> Core:
        """The open client. Raises UsageError before it was opened and after it was closed."""
        if self._core is None:
            name = self.__class__.__name__
            raise UsageError(f"the client is not open: use `with {name}(app) as client` (async with for Client)")
        return self._core


class ClientCalls(Opened):
    """Starting runs and finding them, with asyncio."""

    @overload
    async def start(
        self, workflow: Workflow[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> RunHandle[Out]: ...
    @overload
    async def start(
        self, workflow: Workflow[In, Out], input: In, **options: Unpack[StartOptions]
    ) -> RunHandle[Out]: ...
    @overload
    async def start(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> RunHandle[Any]: ...
    async def start(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> RunHandle[Any]:
        """Start a run; returns when the broker has the request. Options: ``StartOptions``.

        Delivery: at least once, applied once per run id (and per ``start_id`` for other ``on_conflict``).
        Raises InvalidValue when the input does not fit, PayloadTooLarge, LogUnavailable (it may have been
        taken: starting again with the same ids is safe), TopicsNotReady.
        """
        target, sent = await asyncio.to_thread(self.core.start, workflow, input, options)
        await acknowledged(sent)
        return RunHandle(self.core, target)

    @overload
    def handle(self, run_id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, Out]) -> RunHandle[Out]: ...
    def handle(self, run_id: str, workflow: Workflow[Any, Any] | None = None) -> RunHandle[Any]:
        """A run that exists already. Its ``result`` needs a database, unless this client started it."""
        return RunHandle(self.core, self.core.target(run_id, workflow))


class SyncClientCalls(Opened):
    """Starting runs and finding them, without asyncio."""

    @overload
    def start(
        self, workflow: Workflow[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Out]: ...
    @overload
    def start(self, workflow: Workflow[In, Out], input: In, **options: Unpack[StartOptions]) -> SyncRunHandle[Out]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> SyncRunHandle[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> SyncRunHandle[Any]:
        """Start a run; see ``Client.start``."""
        target, sent = self.core.start(workflow, input, options)
        sent.result()
        return SyncRunHandle(self.core, target)

    @overload
    def handle(self, run_id: str) -> SyncRunHandle[Any]: ...
    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, Out]) -> SyncRunHandle[Out]: ...
    def handle(self, run_id: str, workflow: Workflow[Any, Any] | None = None) -> SyncRunHandle[Any]:
        """A run that exists already. Its ``result`` needs a database, unless this client started it."""
        return SyncRunHandle(self.core, self.core.target(run_id, workflow))
