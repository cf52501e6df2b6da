"""The workflows that tests of the coordinator run. Their steps are executed by ``PlainWorker``."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any, Literal

from ductor_stream import App, Retry, Run, Signal, Step, StepError, Workflow

Double = Step[[int], int]


def make_app(namespace: str) -> App:
    """An app of that namespace; every call declares the same code, so that it has the same digests."""
    app = App(namespace)
    word = app.signal("word", str)

    @app.step(retry=Retry(max_attempts=3, initial=0.02, maximum=0.05))
    async def double(x: int) -> int:
        return x * 2

    chain = _steps(app, double)
    words = _signals(app, word)
    _mixtures(app, double, word)
    _families(app, double, chain, words, word)
    _executions(app, double, word)
    _fans(app, double, words)
    _commands(app, double, words)
    return app


def _steps(app: App, double: Double) -> Workflow[int, list[int]]:
    """Steps alone, in a row, side by side, with bounds on them."""

    @app.step(retry=Retry(max_attempts=1))
    async def size(text: str) -> int:
        return len(text)

    @app.workflow
    async def measure(run: Run, times: int) -> int:
        """One step with an input of so many characters."""
        return await run.step(size, "x" * times)

    @app.workflow
    async def chain(run: Run, n: int) -> list[int]:
        """One step after the other."""
        return [await run.step(double, x) for x in range(n)]

    @app.workflow
    async def fan(run: Run, n: int) -> list[int]:
        """All steps at once."""
        return await asyncio.gather(*(run.step(double, x) for x in range(n)))

    @app.workflow
    async def timed(run: Run, options: dict[str, float]) -> str:
        """One step with these time-outs (seconds), tried once; how it ended."""
        try:
            return f"result {await run.step(double.options(retry=Retry(max_attempts=1), **options), 1)}"  # type: ignore[arg-type]
        except StepError as error:
            return error.error_code

    @app.workflow
    async def stubborn(run: Run) -> str:
        """One step with a heartbeat, tried twice; how it ended."""
        twice = Retry(max_attempts=2, initial=0.02)
        try:
            return f"result {await run.step(double.options(retry=twice, heartbeat=0.6), 1)}"
        except StepError as error:
            return error.error_code

    @app.workflow
    async def persistent(run: Run, initial: float) -> int:
        """One step that is tried again after this back-off (seconds, nothing but it)."""
        return await run.step(double.options(retry=Retry(max_attempts=3, initial=initial, jitter=0)), 1)

    @app.workflow
    async def elsewhere(run: Run, queue: str) -> int:
        """One step on that queue."""
        return await run.step(double.options(queue=queue), 21)

    return chain


def _signals(app: App, word: Signal[str]) -> Workflow[int, list[str]]:
    """Signals, with deadlines and without."""

    @app.workflow
    async def words(run: Run, n: int) -> list[str]:
        """So many signals, in their order."""
        return [await run.wait_signal(word) for _ in range(n)]

    @app.workflow
    async def patient(run: Run, waits: list[float]) -> list[str]:
        """A word within each of these times (seconds), or "-"; then all that come until "end"."""
        heard: list[str] = []
        words = run.signals(word)
        for number, wait in enumerate(waits):
            try:
                async with asyncio.timeout(wait):
                    heard.append(await (run.wait_signal(word) if number % 2 else anext(words)))
            except TimeoutError:
                heard.append("-")
        async for text in words:
            if text == "end":
                break
            heard.append(text)
        return heard

    @app.workflow(timeout=0.3)
    async def hasty(run: Run) -> str:
        """Has 0.3 s, and waits for ever."""
        return await run.wait_signal(word)

    return words


def _mixtures(app: App, double: Double, word: Signal[str]) -> None:
    """Sleeps, a bit of everything, and what harms its owner."""

    @app.workflow
    async def nap(run: Run, ms: int) -> int:
        """A durable sleep, then a step."""
        await asyncio.sleep(ms / 1000)
        return await run.step(double, 1)

    @app.workflow
    async def dozers(run: Run, until: tuple[float, int]) -> int:
        """So many durable sleeps side by side, until that time (seconds since 1970)."""
        at, n = until
        left = at - run.now().timestamp()
        await asyncio.gather(*(asyncio.sleep(left) for _ in range(n)))
        return n

    @app.workflow
    async def order(run: Run, n: int) -> list[Any]:
        """A bit of everything: steps side by side, a signal, a sleep, steps in a row."""
        found: list[Any] = await asyncio.gather(*(run.step(double, x) for x in range(n)))
        found.append(await run.wait_signal(word))
        await asyncio.sleep(0.02)
        return [*found, *[await run.step(double, x) for x in range(n)]]

    @app.workflow
    async def deadly(run: Run, how: Literal["crashes", "never yields", "allocates"]) -> int:
        """Takes its owner along, whoever that is, or would if it could."""
        if how == "crashes":
            return len(ctypes.string_at(0))
        kept = []
        while True:
            if how == "allocates":
                kept.append(bytes(1 << 24))


def _families(
    app: App, double: Double, chain: Workflow[int, list[int]], words: Workflow[int, list[str]], word: Signal[str]
) -> None:
    """Runs with children."""

    @app.workflow
    async def mother(run: Run, n: int) -> list[list[int]]:
        """So many children at once, each a chain of two steps."""
        return await asyncio.gather(*(run.child(chain, 2) for _ in range(n)))

    @app.workflow
    async def escort(run: Run, n: int) -> list[int]:
        """A step, then a child with so many."""
        return [await run.step(double, n), *await run.child(chain, n, run_id=f"{run.info.run_id}-child")]

    @app.workflow
    async def tree(run: Run, depth: int) -> int:
        """Two children each, so many levels deep; the leaves wait for a word. How many runs it has."""
        if not depth:
            return len([await run.wait_signal(word)])
        below = (run.child(tree, depth - 1, run_id=f"{run.info.run_id}{side}") for side in "lr")
        return 1 + sum(await asyncio.gather(*below))

    @app.workflow
    async def guardian(run: Run, policy: Literal["cancel", "terminate", "abandon"]) -> list[str]:
        """A child that waits for a word, under this policy."""
        return await run.child(words, 1, run_id=f"{run.info.run_id}-child", parent_close=policy)

    @app.workflow
    async def launcher(run: Run) -> str:
        """Starts a run that waits for a word, and ends without waiting for it."""
        return await run.child(words, 1, run_id=f"{run.info.run_id}-own", detach=True)


def _executions(app: App, double: Double, word: Signal[str]) -> None:
    """Runs that continue as new."""

    @app.workflow
    async def laps(run: Run, left: int) -> int:
        """So many executions, one step in each."""
        await run.step(double, left)
        if left > 1:
            run.continue_as_new(left - 1)
        return left

    @app.workflow
    async def endless(run: Run, heard: list[int]) -> list[int]:
        """Continues as new after each few words; the word 0 ends it."""
        for _ in range(3):
            heard.append(int(await run.wait_signal(word)))
            if not heard[-1]:
                return heard
        run.continue_as_new(heard)

    @app.workflow
    async def tally(run: Run, heard: int) -> int:
        """As endless, but it hands on no more than how far the words were in order."""
        for _ in range(3):
            number = int(await run.wait_signal(word))
            if not number:
                return heard
            if number != heard + 1:
                raise ValueError(f"word {number} after {heard}")
            heard = number
        run.continue_as_new(heard)


def _commands(app: App, double: Double, words: Workflow[int, list[str]]) -> None:
    """Runs that a command meets in the midst of something."""
    once = Retry(max_attempts=1)

    @app.step(retry=once)
    async def keep(x: int) -> int:
        return x * 2

    @app.step(retry=once)
    async def sweep(x: int) -> int:
        return x * 2

    @app.workflow
    async def tidy(run: Run) -> list[int]:
        """A step beside a shielded one, and a step of cleanup; what was shielded is awaited in any case, and shown."""
        kept = asyncio.create_task(run.step(keep, 3))
        try:
            return await asyncio.gather(run.step(double, 1), asyncio.shield(kept))
        finally:
            await run.step(sweep, 2)
            run.set_view({"kept": await kept})

    @app.workflow
    async def ward(run: Run) -> list[Any]:
        """A child that waits for a word, then a step."""
        return [await run.child(words, 1), await run.step(double, 1)]


def _fans(app: App, double: Double, words: Workflow[int, list[str]]) -> None:
    """Much at once under a bound, and what awaits nothing."""

    @app.workflow
    async def brood(run: Run, n: int) -> list[Any]:
        """So many steps and so many children, all at once; each child waits for a word."""
        below = (run.child(words, 1, run_id=f"{run.info.run_id}-{x}") for x in range(n))
        return await asyncio.gather(*(run.step(double, x) for x in range(n)), *below)

    @app.workflow
    async def spread(run: Run, what: tuple[int, int, Literal["cancel", "collect"]]) -> list[int | str]:
        """A map over so many items, so many at a time; an item that fails, or the whole, is the error's type."""
        n, width, policy = what
        try:
            found = await run.map(double, range(n), max_in_flight=width, on_error=policy)
        except StepError as error:
            return [error.type or ""]
        return [one.type or "" if isinstance(one, StepError) else one for one in found]

    @app.workflow
    async def idle(run: Run) -> None:
        """A step, then nothing that could ever happen."""
        await run.step(double, 1)
        await asyncio.Event().wait()
