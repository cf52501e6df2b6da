"""The demo's coordinators and workers: processes that are started, killed with -9, and ended with the demo itself."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch, log_tail
from ductor_stream.telemetry.health import ask

Role = Literal["coordinator", "worker"]

_ASK_WITHIN_S = 2
_END_WITHIN_S = 10.0
"""A graceful stop drains within this time; after it the process is killed, which the next start survives."""


@dataclass
class Member:
    """One process of the fleet. ``state`` is running or killed; ``counts`` are its counters as last seen."""

    role: Role
    number: int
    process: ServerProcess
    health_port: int
    log: Path
    state: str = "running"
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """What it is called on the screen."""
        return f"{self.role} {self.number}"

    def ready(self) -> bool:
        """Whether its health port says so. False while it cannot be asked."""
        return self._get("/readyz") is not None

    def look(self) -> None:
        """Read its counters; what was seen last stays known after its death."""
        text = self._get("/metrics")
        if text is None:
            return
        seen: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    seen[sample.name] += int(sample.value)
        self.counts = seen

    def _get(self, path: str) -> str | None:
        try:
            return ask(self.health_port, path, _ASK_WITHIN_S)
        except OSError:
            return None


class Fleet:
    """All processes of one demo. They end with it, also by ``kill -9`` (on Linux)."""

    def __init__(self, app: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._app = app
        self._folder = folder
        # Settings of the user's own project must not reach the demo's processes.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}
        self._environment = inherited | dict(environment)
        self.members: list[Member] = []

    def start(self, role: Role) -> Member:
        """Start another one. Raises DevStackError where the process cannot be made."""
        number = 1 + sum(member.role == role for member in self.members)
        port = pick_port()
        arguments = [role, self._app, "--health-port", str(port)]
        log = self._folder / f"{role}-{number}.log"
        spec = ServerSpec(
            name=f"{role} {number}",
            command=[sys.executable, "-m", "ductor_stream.cli.main", *arguments],
            folder=self._folder,
            log=log,
            stop_signal=signal.SIGTERM,
            environment=self._environment,
        )
        member = Member(role, number, launch(spec), port, log)
        self.members.append(member)
        return member

    def running(self, role: Role) -> list[Member]:
        """Those of the role that have not been killed."""
        return [member for member in self.members if member.role == role and member.state == "running"]

    def kill(self, member: Member) -> None:
        """End it as a power failure would: SIGKILL."""
        member.look()
        member.state = "killed"
        member.process.end(signal.SIGKILL, _END_WITHIN_S)

    def fallen(self) -> list[Member]:
        """Processes that ended without being asked to: a fault, and the demo says so."""
        return [member for member in self.members if member.state == "running" and not member.process.alive()]

    def counted(self, name: str) -> int:
        """A counter, summed over all processes that there ever were."""
        for member in self.members:
            if member.state == "running":
                member.look()
        return sum(member.counts[name] for member in self.members)

    def stop(self) -> None:
        """End all of them in order; those that do not end by themselves are killed."""
        running = [member for member in self.members if member.state == "running" and member.process.alive()]
        for member in running:
            with suppress(ProcessLookupError):
                os.kill(member.process.pid, signal.SIGTERM)
        for member in running:
            member.process.end(signal.SIGTERM, _END_WITHIN_S)


def last_words(member: Member) -> str:
    """The end of a process's log, for a demo that went wrong."""
    return f"{member.name} ({member.log}):\n{log_tail(member.log)}"
