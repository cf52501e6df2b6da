"""One run of Kafka's broker process in a folder: format it, start it, know when it is ready."""

from __future__ import annotations

import base64
import signal
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ductor_stream.dev.jvm import java_command, java_environment
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch, log_tail, run_once
from ductor_stream.dev.properties import render
from ductor_stream.errors import DevStackError

_READY_WITHIN_S = 60.0
"""A start takes 0.7-3 s; this is for a machine that swaps."""

_FORMAT_FLAGS = ("-XX:TieredStopAtLevel=1", "-Xmx128m")


@dataclass(frozen=True)
class BrokerRun:
    """What a start of the broker needs: where, with which jars, JVM flags and properties."""

    folder: Path
    jars: Sequence[Path]
    flags: Sequence[str]
    properties: Mapping[str, str]
    port: int
    cluster_id: str = ""
    """Of a new data directory: the same on all brokers of a cluster; empty makes one up."""
    stop_signal: signal.Signals = signal.SIGTERM
    """What ends it, also when we die: SIGKILL where its data are not worth a stop in good order."""

    @property
    def log(self) -> Path:
        """The file with the broker's output."""
        return self.folder / "kafka.log"

    def spec(self, command: Sequence[str], log: Path) -> ServerSpec:
        """How a JVM of this broker is run."""
        return ServerSpec(
            name="Kafka",
            command=command,
            folder=self.folder,
            log=log,
            stop_signal=self.stop_signal,
            environment=java_environment(),
        )


def format_if_new(run: BrokerRun, flags: Sequence[str]) -> None:
    """Make the log folder of a new data directory; does nothing for one that is made.

    Raises:
        DevStackError: it cannot be made; the message has the last lines of Kafka's answer.
    """
    _write(run.folder / "server.properties", render(run.properties))
    # Written last by the formatting: a crash midway leaves none, and the next start formats again.
    if (run.folder / "log" / "meta.properties").exists():
        return
    tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", run.cluster_id or new_cluster_id()]
    command = java_command(run.jars, [*_FORMAT_FLAGS, *flags], [*tool, "-c", "server.properties"])
    log = run.folder / "format.log"
    log.unlink(missing_ok=True)
    if run_once(run.spec(command, log)) != 0:
        raise DevStackError(f"Kafka's data folder {run.folder} could not be made; log: {log}:\n{log_tail(log)}")


def start_broker(run: BrokerRun) -> ServerProcess:
    """Start the broker and return when it answers.

    Raises:
        DevStackError: it ended or was not ready in time; the message has the last lines of its log.
    """
    command = java_command(run.jars, [*run.flags, f"-D{marker(run.folder)}"], ["kafka.Kafka", "server.properties"])
    server = launch(run.spec(command, run.log))
    try:
        server.wait_until(lambda: _accepts(run.port), _READY_WITHIN_S)
    except BaseException:
        server.end(signal.SIGKILL, within_s=5)
        raise
    return server


def marker(folder: Path) -> str:
    """What tells the broker of this folder from any other process, in its command line."""
    return f"ductor.kafka={folder}"


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
    except OSError:
        return False
    return True


def new_cluster_id() -> str:
    """An id that no other cluster has. One that starts with a dash would be read as an option."""
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "A" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise DevStackError(f"{path} cannot be written: {error.strerror}") from error
