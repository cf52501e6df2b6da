"""The demo, step by step: start everything, order, kill, restart, wait, check."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Producer

import ductor_stream
from ductor_stream.app import App
from ductor_stream.cli.demo_checks import Check, checks, latency, progress
from ductor_stream.cli.demo_fleet import Fleet, Member, Role, last_words
from ductor_stream.cli.demo_screen import Now, Outcome, Screen
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.running import Stop
from ductor_stream.cli.starting import interruptible, progress_told
from ductor_stream.config import Settings, load
from ductor_stream.dev.stack import DevStack, running_pid
from ductor_stream.errors import DevStackError
from ductor_stream.kafka.topics import create_topics, delete_topics
from ductor_stream.store.migrate import migrate
from ductor_stream.wiring.topics import admin_config, planned

PARTITIONS = 4
COORDINATORS = WORKERS = 2
ORDERS_PER_S = 60
"""So that there is something to watch: all at once would be over before the kills."""
KILL_AT = 0.4
"""The share of completed orders at which processes are killed."""
HELD_BACK = 0.2
"""The share of orders that come only after the kill: however fast the others were, some meet what it left."""
READY_WITHIN_S = 90.0
STALLED_S = 45.0
"""Without any change for so long (a take-over lasts some seconds, a lost worker's attempts ten) something is broken."""
_LOOK_EVERY_S = 0.2
_FLUSH_S = 10.0
_MOST_AT_ONCE = 9
"""Demos that may run side by side in one project: each has servers of its own, some 600 MB."""


class Interrupted(Exception):
    """Somebody asked the demo to stop."""


class DemoFailed(DevStackError):
    """The demo could not be played to its end."""


def example_folder() -> Path:
    """Where ``examples/orders`` is: beside the package in a clone, inside it when installed. Raises DemoFailed."""
    package = Path(ductor_stream.__file__).parent
    for folder in (package.parent / "examples/orders", package / "examples/orders"):
        if (folder / "orders.py").exists():
            return folder
    raise DemoFailed("examples/orders is not there: run the demo from a clone of the repository")


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ductor_demo_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def servers(base: Path, tell: Callable[[str], None]) -> Iterator[DevStack]:
    """Kafka and Postgres on the first data directory that no other demo uses. Raises DevStackError.

    ``tell`` hears what a first start has to do.
    """
    for number in range(1, _MOST_AT_ONCE + 1):
        folder = base.with_name(base.name + (f"-{number}" if number > 1 else ""))
        stack = DevStack(folder)
        try:
            with interruptible(), progress_told(tell):
                stack.start()
        except DevStackError:
            if running_pid(folder) is None:
                raise
            continue
        try:
            yield stack
        finally:
            stack.stop()
        return
    raise DemoFailed(f"{_MOST_AT_ONCE} demos run already in {base.parent}")


_NOTHING = {"DUCTOR_CONFIG": os.devnull}
"""No file is read: what is in this folder is for other servers."""


class Story:
    """One demo on running servers. Its time is that of ``screen``, which began with the command."""

    def __init__(self, stack: DevStack, orders: int, screen: Screen, stop: Stop) -> None:
        assert stack.kafka is not None and stack.postgres is not None
        self._screen, self._stop = screen, stop
        self._token = secrets.token_hex(3)
        self.namespace = f"demo-{self._token}"
        folder = example_folder()
        self._spec = f"{folder / 'orders.py'}:app"
        self._orders = list(_module(folder / "incoming.py").records(orders, f"order-{self._token}"))
        self._expected = [key for key, value in self._orders if value["type"] == "run.start"]
        self._settings = load(
            _NOTHING,
            kafka_bootstrap=stack.kafka.bootstrap,
            database_url=stack.postgres.url,
            namespace=self.namespace,
            partitions=PARTITIONS,
        )
        self._fleet = Fleet(self._spec, stack.data_dir, _environment(self._settings))
        self._now = Now(orders, members=self._fleet.members)
        self._killed = False
        self._go_on, self._over = threading.Event(), threading.Event()

    def play(self) -> Outcome:
        """From the first process to the checks. Raises Interrupted, DemoFailed."""
        app = load_app(self._spec)
        try:
            self._prepare(app)
            self._start()
            self._order_and_kill()
            return self._judge()
        finally:
            self._screen.end()
            self._fleet.stop()
            self._clean(app)

    def _prepare(self, app: App) -> None:
        migrate(self._settings.need_database())
        create_topics(admin_config(app, self._settings), planned(app, self._settings))

    def _clean(self, app: App) -> None:
        """The rows stay for whoever is curious; topics cost the broker something at each start."""
        names = [each.name for each in planned(app, self._settings)]
        delete_topics(admin_config(app, self._settings), names)

    def _start(self) -> None:
        for _ in range(COORDINATORS):
            self._fleet.start("coordinator")
        for _ in range(WORKERS):
            self._fleet.start("worker")
        self._wait_ready(self._fleet.members)
        self._screen.tell(f"{COORDINATORS} coordinators and {WORKERS} workers are ready")

    def _wait_ready(self, members: list[Member]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        for member in members:
            while not member.ready():
                if not member.process.alive() or time.monotonic() > deadline:
                    raise DemoFailed(f"{last_words(member)}\nis not ready")
                self._pause()

    def _order_and_kill(self) -> None:
        self._screen.begin()
        thread = threading.Thread(target=self._produce, name="demo-orders", daemon=True)
        thread.start()
        try:
            self._watch()
        finally:
            # However it ends: nobody produces to servers that stop.
            self._over.set()
            self._go_on.set()
            thread.join()
        self._screen.end()

    def _watch(self) -> None:
        moved_at = time.monotonic()
        with psycopg.connect(self._settings.need_database(), autocommit=True) as connection:
            while time.monotonic() < moved_at + STALLED_S and not self._fleet.fallen():
                seen = progress(connection, self.namespace)
                if seen != self._now.progress:
                    self._now.progress, moved_at = seen, time.monotonic()
                self._screen.draw(self._now)
                if self._now.produced == self._now.orders and self._now.progress.closed >= self._now.orders:
                    break
                if not self._killed and self._now.progress.completed >= KILL_AT * self._now.orders:
                    self._kill_and_replace()
                self._pause()

    def _produce(self) -> None:
        """A plain producer with plain JSON, as any service has: nothing of this library is in it."""
        producer = Producer({"bootstrap.servers": self._settings.need_kafka()})
        topic = self._settings.topics(self.namespace).run_events
        for key, value in self._orders:
            if self._now.produced >= (1 - HELD_BACK) * self._now.orders:
                self._go_on.wait()
            if self._over.is_set():
                break
            producer.produce(topic, json.dumps(value), key)
            producer.poll(0)
            if value["type"] == "run.start":
                self._now.produced += 1
                self._over.wait(1 / ORDERS_PER_S)
        producer.flush(_FLUSH_S)

    def _kill_and_replace(self) -> None:
        roles: tuple[Role, ...] = ("coordinator", "worker")
        for role in roles:
            victim = self._fleet.running(role)[0]
            self._fleet.kill(victim)
            self._screen.tell(f"kill -9 of {victim.name} (pid {victim.process.pid})", "bold red")
        for role in roles:
            fresh = self._fleet.start(role)
            self._screen.tell(f"started {fresh.name} (pid {fresh.process.pid})", "green")
        self._killed = True
        self._go_on.set()

    def _judge(self) -> Outcome:
        fallen = [f"{member.name} ended by itself, see {member.log}" for member in self._fleet.fallen()]
        attempts = self._fleet.counted("ductor_attempts_redriven_total")
        records = self._fleet.counted("ductor_redrives_total")
        with psycopg.connect(self._settings.need_database(), autocommit=True) as connection:
            found = checks(connection, self.namespace, self._expected)
            found.append(Check("one coordinator and one worker were killed, no other died", fallen or self._unkilled()))
            return Outcome(
                namespace=self.namespace,
                orders=len(self._expected),
                progress=progress(connection, self.namespace),
                attempts_redriven=attempts,
                records_redriven=records,
                latency=latency(connection, self.namespace),
                seconds=self._screen.seconds(),
                checks=found,
            )

    def _unkilled(self) -> list[str]:
        return [] if self._killed else ["nothing was killed: too few orders completed"]

    def _pause(self) -> None:
        if self._stop.wait(_LOOK_EVERY_S):
            raise Interrupted


def _environment(settings: Settings) -> dict[str, str]:
    given: dict[str, Any] = {
        **_NOTHING,
        "DUCTOR_KAFKA_BOOTSTRAP": settings.need_kafka(),
        "DUCTOR_DATABASE_URL": settings.need_database(),
        "DUCTOR_NAMESPACE": settings.namespace,
        "DUCTOR_LOG_FORMAT": "console",
    }
    return msgspec.convert(given, dict[str, str])
