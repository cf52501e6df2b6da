"""A long-running process: logs, health port, signals, and services that end in good order."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from ductor_stream.cli.hangs import DeadMansSwitch
from ductor_stream.config import Settings
from ductor_stream.errors import InvalidConfig, LogUnavailable, StoreUnavailable
from ductor_stream.telemetry import logs
from ductor_stream.telemetry.health import HealthServer
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.wiring.group import Group, Service

_log = get_logger(__name__)
_T = TypeVar("_T")

CONNECT_WITHIN_S = 30.0
"""How long a process waits at its start for Kafka and Postgres: they may be starting beside it. Then it ends with 5."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.5, 5.0
_LOOK_EVERY_S = 0.05
_KILLED = 130


class Stop:
    """Set by SIGTERM or SIGINT; a second signal ends the process at once, whatever it is doing.

    A pipe and no Event: a signal handler that takes a lock can wait for its own thread.
    """

    def __init__(self) -> None:
        self._set = False
        self._readable, self._writable = os.pipe()

    def is_set(self) -> bool:
        """Whether the process is to end."""
        return self._set

    def set(self) -> None:
        """End the process in good order. Safe in a signal handler and in any thread."""
        if not self._set:
            self._set = True
            os.write(self._writable, b"x")

    def wait(self, timeout: float) -> bool:
        """Wait at most so many seconds; whether it is set."""
        if not self._set:
            select.select([self._readable], [], [], timeout)
        return self._set

    def heard(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._set:
            os._exit(_KILLED)
        self.set()

    def close(self) -> None:
        """Nobody waits any more."""
        os.close(self._readable)
        os.close(self._writable)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside, SIGTERM, SIGINT and SIGHUP ask to stop. For the main thread."""
    stop = Stop()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, stop.heard) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        stop.close()


def process_registry() -> CollectorRegistry:
    """The registry of this process, with what Python and the operating system tell of it."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def connected(connect: Callable[[], _T], stop: Stop, within_s: float = CONNECT_WITHIN_S) -> _T | None:
    """Call ``connect`` until it works; None when ``stop`` was set meanwhile.

    Raises what trying again cannot mend, and after ``within_s`` LogUnavailable or StoreUnavailable, saying so.
    """
    deadline, pause = time.monotonic() + within_s, _FIRST_RETRY_S
    while not stop.is_set():
        try:
            return connect()
        except (LogUnavailable, StoreUnavailable) as error:
            if time.monotonic() > deadline:
                told = f"tried for {within_s:.0f} s; `ductor-stream doctor` looks at the connections one by one"
                raise type(error)(f"{error} ({told})") from error
            _log.warning("cannot be reached, trying again", reason=str(error), again_in_s=pause)
        stop.wait(pause)
        pause = min(pause * 2, _LONGEST_RETRY_S)
    return None


Build = Callable[[CollectorRegistry], list[Service]]
"""Makes the services of a process, whose metrics go to the registry."""


def run_process(settings: Settings, build: Build, ready: Callable[[CollectorRegistry], bool] | None = None) -> None:
    """Build services, run them side by side until a signal comes or one of them ends, and end in good order.

    ``ready`` is called when no service has a problem, again and again until it says True. Raises what ``build`` or a service raised, and InvalidConfig for a health port that is taken.
    """
    logs.configure(settings.log_format, settings.log_level)
    registry = process_registry()
    with stop_on_signals() as stop, _health(settings, registry) as health:
        services = connected(lambda: build(registry), stop)
        if services is None:
            return
        group, switch = Group(services), DeadMansSwitch()
        health.ask(group.ready)
        _settle_memory()
        try:
            group.start()
            _log.info("running", services=[service.name for service in services], health_port=health.port)
            while not stop.wait(_LOOK_EVERY_S) and not group.wait(0):
                switch.hold(group.ticking_for())
                if ready is not None and not group.ready() and ready(registry):
                    ready = None
        finally:
            _log.info("stopping")
            group.stop()
            switch.release()
    _log.info("stopped")


def _settle_memory() -> None:
    """What is loaded by now stays; what comes is mostly freed by reference counts: let the collector look seldom.

    An owner keeps ten thousands of live coroutines, which it would walk over again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 25, 25)


class _Health:
    """The health server, if one is configured, asking whoever is there by now."""

    def __init__(self) -> None:
        self._ready: Callable[[], list[str]] = lambda: ["the process is starting"]
        self.port: int | None = None

    def ask(self, ready: Callable[[], list[str]]) -> None:
        self._ready = ready

    def reasons(self) -> list[str]:
        return self._ready()


@contextmanager
def _health(settings: Settings, registry: CollectorRegistry) -> Iterator[_Health]:
    health = _Health()
    if settings.health_port is None:
        yield health
        return
    host, port = settings.health_host, settings.health_port
    try:
        server = HealthServer(registry, ready=health.reasons, host=host, port=port)
    except OSError as error:
        told = f"health and metrics cannot be served on port {port} of {host}: {error.strerror}"
        raise InvalidConfig(f"{told}; name another by --health-port, 0 takes a free one") from error
    health.port = server.port
    server.start()
    try:
        yield health
    finally:
        server.stop()
