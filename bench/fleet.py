"""Coordinators and workers as processes of their own, started by the product's command line."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch, log_tail
from ductor_stream.telemetry.health import ask

Mode = Literal["kafka", "sync"]
MODES: tuple[Mode, ...] = ("sync", "kafka")
Role = Literal["coordinator", "worker", "serve"]

ROOT = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 90.0
"""On a machine that is busy with something else, four Python processes take their time to start."""
_END_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Shape:
    """How many processes there are, and how they are set.

    ``sync`` has ``coordinators`` processes of ``serve`` (SyncMatch), and ``workers`` further ones beside them;
    ``kafka`` has coordinators and workers apart. ``partitions`` None is the shipped default.
    """

    mode: Mode
    coordinators: int = 1
    workers: int = 1
    partitions: int | None = None
    concurrency: int = 2_500
    """Attempts at a time per worker (``--concurrency``): the default of 20 is for steps that wait for others. What
    SyncMatch finds no slot for goes over Kafka, so it has one for each step of the widest fan-out."""

    @property
    def label(self) -> str:
        """For tables and logs."""
        tuned = f", {self.partitions} partitions" if self.partitions else ""
        if self.mode == "sync":
            beside = f" + {self.workers} worker" if self.workers else ""
            return f"SyncMatch, {self.coordinators} serve{beside}{tuned}"
        return f"Kafka, {self.coordinators} coordinator + {self.workers} worker{tuned}"


def sync(processes: int = 1, workers: int = 0, partitions: int | None = None) -> Shape:
    """SyncMatch: so many processes that are coordinator and worker in one."""
    return Shape("sync", processes, workers, partitions, concurrency=10_000)


def over_kafka(coordinators: int = 1, workers: int = 1, partitions: int | None = None) -> Shape:
    """Over Kafka: coordinators and workers apart."""
    return Shape("kafka", coordinators, workers, partitions)


@dataclass
class Member:
    """One process."""

    role: Role
    process: ServerProcess
    health_port: int
    log: Path

    def ready(self) -> bool:
        """Whether its health port says so."""
        return self._get("/readyz") is not None

    def answers(self) -> bool:
        """Whether it serves its health port, ready or not."""
        return self._get("/metrics") is not None

    def samples(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """A metric of that process, by labels; empty while it cannot be asked."""
        text = self._get("/metrics") or ""
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]

    def _get(self, path: str) -> str | None:
        try:
            return ask(self.health_port, path, 5)
        except OSError:
            return None


@dataclass
class Fleet:
    """The processes of one scenario. They end with this process, also by ``kill -9``."""

    folder: Path
    environment: Mapping[str, str]
    members: list[Member] = field(default_factory=list)
    _started: int = field(default=0, init=False)

    def start(
        self,
        role: Role,
        concurrency: int = 0,
        module: str = "ductor_stream.cli.main",
        more: Mapping[str, str] | None = None,
    ) -> Member:
        """Start another process, with ``more`` in its environment.

        ``module`` may be one that takes the same arguments (see profiled.py and stamped.py).
        """
        port = pick_port()
        self._started += 1
        number = self._started - 1
        log = self.folder / f"{role}-{number}.log"
        command = [sys.executable, "-m", module, role, "bench.app:app", "--health-port", str(port)]
        if role != "coordinator":
            command += ["--concurrency", str(concurrency)]
        environment = {**os.environ, **self.environment, **(more or {})}
        spec = ServerSpec(f"{role} {number}", command, ROOT, log, signal.SIGTERM, environment=environment)
        member = Member(role, launch(spec), port, log)
        self.members.append(member)
        return member

    def owners(self) -> list[Member]:
        """Those that own partitions."""
        return [member for member in self.members if member.role != "worker"]

    def await_ready(self, partitions: int) -> None:
        """Return when all are ready and each owner has its share of the partitions."""
        deadline = time.monotonic() + READY_WITHIN_S
        least = 1 if partitions >= len(self.owners()) else 0
        while True:
            owned = [_total(member, "ductor_partitions_owned") for member in self.owners()]
            if sum(owned) == partitions and min(owned) >= least and all(member.ready() for member in self.members):
                return
            for member in self.members:
                if not member.process.alive() or time.monotonic() > deadline:
                    raise RuntimeError(f"not ready, {owned} partitions owned; {member.log}:\n{log_tail(member.log)}")
            time.sleep(_LOOK_EVERY_S)

    def kill(self, member: Member) -> None:
        """End one of them as a crash would."""
        member.process.end(signal.SIGKILL, _END_WITHIN_S)
        self.members.remove(member)

    def pids(self) -> dict[str, list[int]]:
        """Pids by role."""
        found: dict[str, list[int]] = {}
        for member in self.members:
            found.setdefault(member.role, []).append(member.process.pid)
        return found

    def total(self, name: str) -> float:
        """A metric, summed over all processes and labels."""
        return sum(_total(member, name) for member in self.members)

    def stop(self) -> None:
        """End all of them in good order."""
        for member in self.members:
            with suppress(ProcessLookupError):
                os.kill(member.process.pid, signal.SIGTERM)
        for member in self.members:
            member.process.end(signal.SIGTERM, _END_WITHIN_S)


def _total(member: Member, name: str) -> float:
    return sum(value for _, value in member.samples(name))
