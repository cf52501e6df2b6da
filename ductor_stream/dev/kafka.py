"""A real Apache Kafka on this machine, without Docker, Maven or an installed Java."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from ductor_stream.dev.aot import aot_flags
from ductor_stream.dev.broker import BrokerRun, format_if_new, marker, start_broker
from ductor_stream.dev.jars import ensure_jars
from ductor_stream.dev.lock import FolderLock
from ductor_stream.dev.ports import port_is_free, remembered_ports
from ductor_stream.dev.process import ServerProcess, end_orphan
from ductor_stream.dev.properties import broker_properties
from ductor_stream.errors import DevStackError

_STOP_WITHIN_S = 15.0
"""A clean stop takes 0.3 s; after this the broker is killed, which it survives without loss."""

_PORT_TRIES = 3
"""Between picking a free port and listening on it, another process may take it; three times is no accident."""


class EmbeddedKafka:
    """One broker (KRaft, combined roles) with its data in ``data_dir``, listening on 127.0.0.1 only.

    Args:
        data_dir: made if it does not exist; a restart on it finds the topics and records again.
        port: the clients' port; None picks a free one and remembers it in ``data_dir``.
        extra: further broker properties, which win over ours.
        heap: the JVM's maximal heap, in Java's notation.
        fast_start: compile with C1 only: ready in 0.7 s instead of 1 s, but slower under sustained load.
            Turn it off for benchmarks.
        cluster_id: for a new ``data_dir`` that is one broker of several; empty makes one up.

    Records that were acknowledged survive ``kill -9`` of the broker. On Linux the broker ends when the
    process that started it ends, also by ``kill -9``; on macOS it is found and ended at the next start.
    Not safe for use by several threads at once.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        extra: Mapping[str, str] | None = None,
        heap: str = "512m",
        fast_start: bool = True,
        cluster_id: str = "",
    ) -> None:
        self._folder = data_dir.absolute()
        self._wanted_port = port
        self._extra = dict(extra or {})
        self._flags = [f"-Xmx{heap}", *(["-XX:TieredStopAtLevel=1"] if fast_start else [])]
        self._cluster_id = cluster_id
        self._lock = FolderLock(self._folder / "lock")
        self._port: int | None = None
        self._server: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, ``127.0.0.1:PORT``; known once ``start`` has returned.

        Raises:
            DevStackError: it was never started.
        """
        if self._port is None:
            raise DevStackError("the embedded Kafka has not been started")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's pid, or None while it does not run."""
        return self._server.pid if self._server is not None and self._server.alive() else None

    @property
    def ended(self) -> str:
        """How the broker ended by itself (``killed by signal 9``); empty while it runs, and once it was stopped."""
        return self._server.ending if self._server is not None and not self._server.alive() else ""

    @property
    def log(self) -> Path:
        """The file with the broker's output."""
        return self._folder / "kafka.log"

    def start(self) -> None:
        """Start the broker and return when it answers; does nothing if it runs.

        The very first start on a machine fetches the jars (44 MB) unless installation did.

        Raises:
            DevStackError: another process uses ``data_dir``, the port is taken, the jars cannot be had, or
                the broker ended; the message says which, and where the log is.
        """
        self._start_on(self._wanted_port)

    def _start_on(self, port: int | None) -> None:
        if self.pid is not None:
            return
        self._lock.acquire()
        try:
            self._end_orphan()
            self._start(port)
        except OSError as error:
            self._lock.release()
            raise DevStackError(f"the embedded Kafka cannot use {self._folder}: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def stop(self) -> None:
        """Stop the broker in order and let go of ``data_dir``. Does nothing if it does not run."""
        self._end(signal.SIGTERM)
        self._lock.release()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would. ``restart`` starts it again."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker if it runs and start it again on the same port. Raises as ``start`` does."""
        self._end(signal.SIGTERM)
        self._start_on(self._wanted_port or self._port)

    def _start(self, port: int | None) -> None:
        cache = self._folder / "cache"
        jars = ensure_jars(cache)
        aot = aot_flags(jars, cache)
        for tries_left in reversed(range(_PORT_TRIES)):
            run = self._run(jars, aot, port)
            try:
                format_if_new(run, aot)
                self._server = start_broker(run)
            except DevStackError:
                if tries_left and port is None and not port_is_free(run.port):
                    continue
                raise
            self._port = run.port
            (self._folder / "pid").write_text(f"{self._server.pid}\n", encoding="ascii")
            return

    def _run(self, jars: list[Path], aot: list[str], port: int | None) -> BrokerRun:
        ports = remembered_ports(self._folder / "ports.json", {"kafka": port, "controller": None})
        return BrokerRun(
            folder=self._folder,
            jars=jars,
            flags=[*self._flags, *aot],
            properties=broker_properties(ports["kafka"], ports["controller"], self._extra),
            port=ports["kafka"],
            cluster_id=self._cluster_id,
        )

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None:
            self._server.end(number, _STOP_WITHIN_S)
            self._server = None

    def _end_orphan(self) -> None:
        try:
            pid = int((self._folder / "pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return
        end_orphan(pid, marker(self._folder), signal.SIGTERM)
