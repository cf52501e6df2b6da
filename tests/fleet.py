"""Coordinators, workers and ``serve`` as processes of the product's own command line, to be killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from rig import Rig
from support import free_port, fresh_name, until

from ductor_stream.dev.process import ServerProcess, ServerSpec, launch, log_tail

Role = Literal["coordinator", "worker", "serve"]

APPS = Path(__file__).parent / "e2e" / "apps"
"""Where the apps are that these processes load."""

END_WITHIN_S = 60.0
READY_WITHIN_MS = 60_000
"""On a machine that is busy with something else, half a dozen Python processes take their time to start."""


@dataclass
class Member:
    """One process. ``recipe`` is what it was started with, ``killed`` says that it was asked to end."""

    role: Role
    name: str
    recipe: dict[str, Any]
    spec: ServerSpec
    health_port: int
    process: ServerProcess
    killed: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Its counters as they were seen last: ``name`` summed over labels, and ``name{label=value}``."""

    @property
    def log(self) -> str:
        """Everything that it has written."""
        return self.spec.log.read_text("utf-8", "replace")

    def ready(self) -> bool:
        """Whether its health port says so. Fails when it has ended."""
        if not self.process.alive():
            raise RuntimeError(f"{self.name} has ended: {log_tail(self.spec.log)}")
        return self._get("/readyz") is not None

    def metric(self, name: str, **labels: str) -> float:
        """A metric, summed over all labels but these; its last known value once the process is gone."""
        self.look()
        return self.counts[name] if not labels else sum(self.counts[f"{name}{{{k}={v}}}"] for k, v in labels.items())

    def look(self) -> None:
        """Read its metrics, while it is there."""
        text = self._get("/metrics") if self.process.alive() else None
        if text is None:
            return
        seen: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                seen[sample.name] += int(sample.value)
                for label, value in sample.labels.items():
                    seen[f"{sample.name}{{{label}={value}}}"] += int(sample.value)
        self.counts = seen

    def kill(self) -> None:
        """SIGKILL."""
        self.killed = True
        self.process.end(signal.SIGKILL, END_WITHIN_S)

    def terminate(self) -> None:
        """SIGTERM; it must end in good order. ``until_ended`` waits for that."""
        self.look()
        self.killed = True
        os.kill(self.process.pid, signal.SIGTERM)

    def until_ended(self) -> None:
        """It ends by itself, with status 0."""
        until(lambda: not self.process.alive(), within_ms=END_WITHIN_S * 1000, what=f"the end of {self.name}")
        assert self.process.exit_status == 0, f"{self.name}: {self.process.exit_status}: {log_tail(self.spec.log)}"

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=5) as answer:
                body: bytes = answer.read()
                return body.decode()
        except (OSError, urllib.error.URLError):
            return None


class Fleet:
    """The processes of one test, over the rig's namespace. They end with the test, also by ``kill -9``.

    Steps tell of their effects by ``told.effect``, which appends lines to files in ``folder``. ``settings`` are further
    variables of all processes and commands.
    """

    def __init__(self, rig: Rig, app: str = "shop:app") -> None:
        self.rig, self.app = rig, app
        self.settings: dict[str, str] = {}
        self.folder = rig.folder / "effects"
        self.folder.mkdir(exist_ok=True)
        self.members: list[Member] = []

    def start(
        self, role: Role, *options: str, instance: str | None = None, folder: Path = APPS, app: str | None = None
    ) -> Member:
        """Start another process; ``folder`` is where the app's module is."""
        port = free_port()
        name = f"{role}-{len(self.members) + 1}"
        command = [sys.executable, "-m", "ductor_stream.cli.main", role, app or self.app, *options]
        spec = ServerSpec(
            name,
            [*command, "--health-port", str(port)],
            folder,
            self.rig.folder / f"{name}.log",
            signal.SIGTERM,
            environment=self._environment(role, instance),
        )
        recipe = {"instance": instance, "folder": folder, "app": app}
        member = Member(role, name, {"options": options, **recipe}, spec, port, launch(spec))
        self.members.append(member)
        return member

    def restart(self, member: Member) -> Member:
        """Another process in the place of one that is gone, under its stable name if it had one."""
        recipe = dict(member.recipe)
        return self.start(member.role, *recipe.pop("options"), **recipe)

    def running(self, *roles: Role) -> list[Member]:
        """Those that were not killed, of these roles."""
        return [member for member in self.members if not member.killed and member.role in (roles or _ROLES)]

    def until_ready(self) -> None:
        """Wait until all that run are ready, and each coordinator owns its share of all partitions."""

        def look() -> bool:
            waiting = [member.name for member in self.running() if not member.ready()]
            assert not waiting, f"not ready: {waiting}"
            owners = self.running("coordinator", "serve")
            owned = {member.name: member.metric("ductor_partitions_owned") for member in owners}
            assert not owners or (sum(owned.values()) == self.rig.partitions and min(owned.values()) > 0), owned
            return True

        until(look, within_ms=READY_WITHIN_MS, what="a ready fleet")

    def until_shared(self, queue: str) -> None:
        """Wait until all workers that run have partitions of the queue, and nobody else has any."""

        def look() -> bool:
            shares = self.shares(queue)
            assert len(shares) == len(self.running("worker", "serve")) and all(shares), shares
            return True

        until(look, within_ms=READY_WITHIN_MS, what=f"queue {queue} shared")

    def shares(self, queue: str) -> list[list[int]]:
        """The partitions that each member of the queue's group has."""
        group = self.rig.topics.worker_group(queue)
        admin = AdminClient({"bootstrap.servers": self.rig.bootstrap})
        found = admin.describe_consumer_groups([group])[group].result(10)
        return sorted(sorted(each.partition for each in member.assignment.topic_partitions) for member in found.members)

    def total(self, name: str, **labels: str) -> float:
        """A counter over all processes that there ever were, as far as they could be asked."""
        return sum(member.metric(name, **labels) for member in self.members)

    def show(self, run_id: str) -> Any:
        """What ``ductor-stream runs show`` tells of a run."""
        return json.loads(self.say("runs", "show", run_id, "--json"))

    def say(self, *arguments: str) -> str:
        """The output of a command of ``ductor-stream`` that must succeed."""
        command = [sys.executable, "-m", "ductor_stream.cli.main", *arguments]
        environment = self._environment("coordinator", None)
        done = subprocess.run(
            command, env=environment, cwd=APPS, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def effects(self) -> list[dict[str, Any]]:
        """What steps have told of, of all processes."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.iterdir()):
            found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return found

    def effect_counts(self) -> Counter[str]:
        """How often each idempotency key had its effect."""
        return Counter(each["key"] for each in self.effects())

    def stop(self) -> None:
        """End all of them."""
        for member in self.members:
            member.process.end(signal.SIGKILL, END_WITHIN_S)

    def check(self) -> None:
        """None of them has ended by itself."""
        fallen = [member for member in self.running() if not member.process.alive()]
        assert not fallen, [f"{member.name} ended by itself: {log_tail(member.spec.log)}" for member in fallen]

    def _environment(self, role: Role, instance: str | None) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}
        own = {
            "DUCTOR_KAFKA_BOOTSTRAP": self.rig.bootstrap,
            "DUCTOR_NAMESPACE": self.rig.namespace,
            "EFFECTS_FOLDER": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(APPS), *filter(None, [inherited.get("PYTHONPATH")])]),
        }
        if role != "worker":
            own["DUCTOR_DATABASE_URL"] = self.rig.database
        if instance is not None:
            own["DUCTOR_KAFKA_INSTANCE_ID"] = instance
        return {**inherited, **own, **self.settings}


_ROLES: tuple[Role, ...] = ("coordinator", "worker", "serve")


@contextmanager
def fleet_of(rig: Rig, app: str = "shop:app") -> Iterator[Fleet]:
    """A fleet that is ended with the block; fails when a process has ended by itself."""
    fleet = Fleet(rig, app)
    try:
        yield fleet
        fleet.check()
    finally:
        fleet.stop()


def gate(rig: Rig) -> Path:
    """A file for which steps wait until the test makes it (``shop.gated``)."""
    return rig.folder / fresh_name("gate")


def module(rig: Rig, name: str, text: str) -> Path:
    """A folder with an app's module ``shop.py`` of that text; ``name`` is the folder's."""
    folder = rig.folder / name
    folder.mkdir()
    (folder / "shop.py").write_text(text, encoding="utf-8")
    return folder
