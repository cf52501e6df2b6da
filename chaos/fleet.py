"""Coordinators and workers as processes of the product's own command line, each in a place with a name of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.fleet import ROOT, Member
from chaos.network import Network
from chaos.records import Recorder
from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.process import ServerSpec, launch, log_tail

Role = Literal["coordinator", "worker", "serve"]
READY_WITHIN_S = 90.0
END_WITHIN_S = 60.0
_LOOK_S = 0.2


@dataclass
class Place:
    """Where a member runs, whatever process that is at the time. ``wanted`` says that somebody should be here."""

    name: str
    role: Role
    instance: str | None
    member: Member | None = None
    wanted: bool = False
    started: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    def answers(self) -> bool:
        """Whether its process serves its health port."""
        return self.member is not None and self.member.process.alive() and self.member.answers()

    def ready(self) -> bool:
        """Whether its process says so."""
        return self.member is not None and self.member.process.alive() and self.member.ready()


class Fleet:
    """All members. A process that ends although it is wanted is noted and started again, as Kubernetes would do.

    ``environment`` is asked for at each start.
    """

    def __init__(
        self, folder: Path, environment: Callable[[], Mapping[str, str]], network: Network, recorder: Recorder
    ) -> None:
        self._folder, self._environment = folder, environment
        self._network, self._recorder = network, recorder
        self.places: dict[str, Place] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep, name="chaos-fleet", daemon=True)

    def add(self, role: Role, number: int, *, instance: bool = False, **environment: str) -> Place:
        """A place for a member; nobody is there yet. ``instance`` makes it a static member of its groups."""
        name = f"{role}-{number}"
        place = Place(name, role, name if instance else None, environment=environment)
        self.places[name] = place
        return place

    def start_all(self) -> None:
        """Somebody to every place."""
        for place in self.places.values():
            self.start(place)
        if not self._watch.is_alive():
            self._watch.start()

    def start(self, place: Place) -> None:
        """A process in that place, unless all of it is being ended."""
        with self._lock:
            if self._closing.is_set():
                return
            port = pick_port()
            place.started += 1
            log = self._folder / f"{place.name}.{place.started}.log"
            command = [sys.executable, "-m", "ductor_stream.cli.main", place.role, "chaos.app:app"]
            command += ["--health-port", str(port)]
            own = {"DUCTOR_KAFKA_INSTANCE_ID": place.instance} if place.instance else {}
            environment = {**os.environ, **self._environment(), **own, **place.environment}
            # SIGKILL: when we die, nobody needs a good end of theirs.
            spec = ServerSpec(place.name, command, ROOT, log, signal.SIGKILL, environment=environment)
            place.member = Member(place.role, launch(spec), port, log)
            place.wanted = True
            self._network.register(place.name, place.member.process.pid)
            self._recorder.note("started", place=place.name, pid=place.member.process.pid, log=log.name)

    def kill(self, place: Place) -> None:
        """SIGKILL; nobody is there until ``start``."""
        with self._lock:
            place.wanted = False
            if place.member is not None:
                self._recorder.note("killed", place=place.name, pid=place.member.process.pid)
                place.member.process.end(signal.SIGKILL, END_WITHIN_S)

    def end(self, place: Place) -> None:
        """SIGTERM, and wait for the end in good order; SIGKILL after a minute, which is noted."""
        with self._lock:
            place.wanted = False
            member = place.member
        if member is None:
            return
        began = time.monotonic()
        member.process.end(signal.SIGTERM, END_WITHIN_S)
        took = time.monotonic() - began
        self._recorder.note("ended", place=place.name, status=member.process.exit_status, seconds=took)

    def signal(self, place: Place, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        if place.member is not None:
            with suppress(ProcessLookupError):
                os.kill(place.member.process.pid, number)

    def of(self, *roles: Role) -> list[Place]:
        """The places of these roles (all, if none is named)."""
        return [place for place in self.places.values() if not roles or place.role in roles]

    def until_ready(self, within_s: float = READY_WITHIN_S) -> None:
        """Wait until everybody who is wanted is ready. Raises TimeoutError with what they say."""
        deadline = time.monotonic() + within_s
        while waiting := [place for place in self.of() if place.wanted and not place.ready()]:
            if time.monotonic() > deadline:
                told = [f"{place.name}: {log_tail(place.member.log)}" for place in waiting if place.member]
                raise TimeoutError(f"not ready after {within_s:.0f} s: {'; '.join(told)}")
            time.sleep(_LOOK_S)

    def owners(self) -> list[Place]:
        """The places of those that own partitions."""
        return self.of("coordinator", "serve")

    def until_running(self) -> None:
        """Wait until everybody who is wanted answers on its health port: started, ready or not.

        Readiness may have to wait for what another fault holds back.
        """
        deadline = time.monotonic() + READY_WITHIN_S
        while waiting := [place.name for place in self.of() if place.wanted and not place.answers()]:
            if time.monotonic() > deadline:
                return self._recorder.note("silent", places=waiting)
            time.sleep(_LOOK_S)
        return None

    def stop(self) -> None:
        """End all of them."""
        self._closing.set()
        with self._lock:
            for place in self.of():
                self.signal(place, signal.SIGCONT)
                self.kill(place)
        if self._watch.ident is not None:
            self._watch.join(10)

    def _keep(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for place in self.of():
                with self._lock:
                    member = place.member
                    if not place.wanted or member is None or member.process.alive() or self._closing.is_set():
                        continue
                    self._recorder.note(
                        "fell", place=place.name, ending=member.process.ending, told=log_tail(member.log)[-4000:]
                    )
                    self.start(place)
