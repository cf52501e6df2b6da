"""Several services in one process, each in a thread: they start together and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ductor_stream.telemetry.logs import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True)
class Service:
    """Something that runs in a thread until it is stopped.

    ``run`` works until ``stop`` is called, drains and returns; ``stop`` may be called from any thread and more than
    once; ``problems`` says why it is not ready now, and is asked from any thread.
    """

    name: str
    run: Callable[[], object]
    stop: Callable[[], None]
    problems: Callable[[], list[str]]
    ticking_for: Callable[[], float] = lambda: 0.0
    """For how many seconds it has been running workflow code without a break."""


class Group:
    """Services that run side by side in threads of one process, and end together.

    When one of them ends, for whatever reason, the others are stopped: half a process helps nobody.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = list(services)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(service,), name=f"ductor-{service.name}") for service in services
        ]

    def start(self) -> None:
        """Start every service in a thread of its own."""
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until one service has ended; False when the time (seconds) is up before that."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Stop all of them in order, wait for their ends, and raise what the first one failed with."""
        for service in self._services:
            try:
                service.stop()
            except Exception as error:  # noqa: BLE001 (the others must be stopped all the same)
                _log.exception("a service cannot be stopped", service=service.name)
                self._error = self._error or error
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error

    def ticking_for(self) -> float:
        """The longest time (seconds) that any service has been running workflow code without a break."""
        return max(each.ticking_for() for each in self._services)

    def ready(self) -> list[str]:
        """Why the process is not ready, by service; empty when all of them are."""
        found = [f"{each.name}: {told}" for each in self._services for told in each.problems()]
        if self._ended.is_set():
            found.append("the process is ending")
        return found

    def _run(self, service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            _log.exception("a service has failed", service=service.name)
            self._error = self._error or error
        finally:
            self._ended.set()
