"""A lane: an event loop in a thread of its own, with the resources that were opened on it.

Async steps run here. A step that blocks the loop blocks its lane alone: the executor then opens another
lane for what comes next, and this one ends when the last of its attempts has.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context, copy_context
from typing import Any

from ductor_stream.telemetry.logs import get_logger
from ductor_stream.worker.steps import Resource

_log = get_logger(__name__)
Work = Callable[["Lane"], Coroutine[Any, Any, None]]

OPEN_S = 30.0
"""How long resources may take to open; a worker that cannot be stopped meanwhile would be worse than one that retries."""

RUN_AT_ONCE = 64
"""How many attempts that never wait run before the loop may turn to others: about a millisecond's worth."""

CLEANUP_S = 2.0
"""How long cancelled steps may clean up before the resources are closed under them."""


class Lane:
    """One event loop. ``submit`` and ``call`` may be used from any thread.

    Work is run by runners. A runner is a task of the loop that runs one piece after the other, each in a clean
    context; the first that waits for something keeps the runner for itself, and another goes on with the rest.
    So what waits has a task of its own, and what does not costs none. ``rest`` is called whenever a runner pauses.
    """

    def __init__(self, resources: Mapping[str, Resource], rest: Callable[[], None], name: str = "ductor-loop") -> None:
        self._resources = resources
        self._rest = rest
        self.values: dict[str, Any] = {}
        """The opened resources, by the name of their declaration."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._pending: deque[Work] = deque()
        self._scheduled = False
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._leave: asyncio.Event | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ended = False
        self._asked_at: float | None = None
        self.borrowers = 0
        """How many steps use its resources elsewhere than on its loop."""

    # -- life -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the loop and open the resources on it. Raises what a resource raised, after closing
        the others, and TimeoutError after ``OPEN_S``."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(OPEN_S)
        except BaseException:
            self._end()
            raise

    def close(self, timeout: float) -> bool:
        """Close the resources and end the loop; False when it did not answer within ``timeout`` seconds."""
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            closing.result(timeout)
        except TimeoutError:
            return False
        except Exception:  # noqa: BLE001 (the user's cleanup may raise anything)
            _log.exception("a resource could not be closed")
        self._end()
        return True

    def _end(self) -> None:
        self._ended = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ended:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001 (said below)
                # SystemExit in a task that a step started leaves run_forever: the other attempts go on all the same.
                _log.exception("an exception left the event loop of the steps")
        with suppress(Exception):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    # -- resources --------------------------------------------------------------------------

    async def _open(self) -> None:
        opened: asyncio.Future[None] = self._loop.create_future()
        self._leave = asyncio.Event()
        # One task enters and leaves them all: what a resource binds to its task (scopes, contexts) fits then.
        self._keeper = self._loop.create_task(self._keep(opened, self._leave))
        await opened

    async def _keep(self, opened: asyncio.Future[None], leave: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, resource in self._resources.items():
                    opening = asynccontextmanager(resource.function)()
                    try:
                        self.values[name] = await stack.enter_async_context(opening)
                    except Exception as error:
                        error.add_note(f"while resource {name!r} was opened")
                        raise
                opened.set_result(None)
                await leave.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def _close(self) -> None:
        if self._tasks:
            # Cancelled steps may still use the resources in their cleanup.
            await asyncio.wait(self._tasks, timeout=CLEANUP_S)
        if self._keeper is not None and self._leave is not None:
            self._leave.set()
            await self._keeper

    # -- work -------------------------------------------------------------------------------

    def submit(self, works: Iterable[Work]) -> None:
        """Run the coroutine that each ``work(lane)`` makes on the loop, soon. It must not raise."""
        self._pending.extend(works)
        # A burst wakes the loop once: each wake-up is a system call.
        if not self._scheduled:
            self._scheduled = True
            self.call(self._wake)

    def adopt(self, blocked: Lane) -> None:
        """Take over what the other lane has not begun."""
        found: list[Work] = []
        with suppress(IndexError):  # the other lane may be free again, and take from it too
            while True:
                found.append(blocked._pending.popleft())
        if found:
            self.submit(found)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread, after everything that was submitted before."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs there any more
            self._loop.call_soon_threadsafe(function)

    def _wake(self) -> None:
        # Reset before looking: whoever appends from now on schedules anew.
        self._scheduled = False
        self._start_runner()

    def _start_runner(self) -> None:
        if self._pending:
            self._tasks.add(self._loop.create_task(self._run_pending()))

    async def _run_pending(self) -> None:
        """A runner: ends when nothing is left, after its share, or when one piece made it unfit for the next."""
        self._turn += 1
        turn, task, clean = self._turn, asyncio.current_task(), copy_context()
        assert task is not None
        self._rest()  # what the runner before has left, if it waits now
        heir = False
        try:
            for _ in range(RUN_AT_ONCE):
                try:
                    work = self._pending.popleft()
                except IndexError:
                    return
                if not self._pending:
                    self._rest()  # nobody comes after this one, which may wait
                elif not heir:
                    heir = True
                    self._start_runner()
                await work(self)
                if turn != self._turn or task.cancelling() or not _is_clean(clean):
                    return
        finally:
            self._tasks.discard(task)
            self._rest()

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it or waits to, and nobody uses its resources."""
        return not self._pending and not self._tasks and not self.borrowers

    # -- is it stuck? -----------------------------------------------------------------------

    def silent_for(self, now: float) -> float:
        """For how many seconds the loop has not answered; asks it again whenever it has. ``now`` is monotonic."""
        if self._asked_at is not None:
            return now - self._asked_at
        self._asked_at = now
        self.call(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked_at = None

    @property
    def thread_id(self) -> int | None:
        """The ident of the loop's thread, for a look at what blocks it."""
        return self._thread.ident


def _is_clean(clean: Context) -> bool:
    """Whether the context is what it was: what one step sets must not be seen by the next."""
    now = copy_context()
    return len(now) == len(clean) and all(now.get(variable, now) is value for variable, value in clean.items())
