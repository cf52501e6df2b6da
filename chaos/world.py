"""Everything that chaos reigns over: brokers, databases, network, members, load. Opened by ``opened``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from chaos.app import app
from chaos.brokers import Brokers
from chaos.fleet import Fleet
from chaos.load import Load
from chaos.network import Network
from chaos.observer import Observer
from chaos.postgres import Pair
from chaos.records import Recorder
from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.topics import AdminConfig, TopicPlan, create_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.migrate import migrate

REPLICAS = 3


@dataclass(frozen=True)
class Shape:
    """How large the world is. ``disk_mb`` is what each Postgres has on a disk of its own, in memory (0: it has none)."""

    coordinators: int = 2
    serves: int = 1
    """Coordinators that execute steps as well (SyncMatch)."""
    workers: int = 2
    partitions: int = 6
    rate: float = 6.0
    """Runs started per second."""
    disk_mb: int = 0
    clocks: bool = False
    """Whether clocks can be set (LD_PRELOAD of libfaketime)."""
    protocol: str = "auto"
    """Of the groups: ``classic``, ``consumer``, or ``auto``."""


@dataclass
class World:
    """What faults lay hands on."""

    shape: Shape
    folder: Path
    """Of the records and the logs."""
    network: Network
    brokers: Brokers
    postgres: Pair
    fleet: Fleet
    load: Load
    observer: Observer
    recorder: Recorder
    topics: Topics
    say: Callable[[str], None]
    clock_files: dict[str, Path] = field(default_factory=dict)
    """By place: the file that sets its clock, where that can be done."""

    @property
    def admin(self) -> AdminConfig:
        """How topics are administered."""
        return AdminConfig(bootstrap=self.brokers.direct, topics=self.topics)

    @property
    def records(self) -> Path:
        """Where all records are."""
        return self.folder / "records"


def made(world: World, plans: Sequence[TopicPlan]) -> set[str]:
    """Create topics that are missing; returns those of them that are there now. A broker that is away is no matter."""
    with suppress(LogUnavailable):
        create_topics(world.admin, plans)
        with suppress(KafkaException):
            return set(world.brokers.admin.list_topics(timeout=15).topics)
    return set()


def faketime() -> str | None:
    """The library that falsifies a process's clock, or None where it is not installed (chaos/requirements.txt)."""
    spec = importlib.util.find_spec("libfaketime")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.rglob("libfaketime.so.1"))
    return str(found[0]) if found else None


@contextmanager
def opened(shape: Shape, seed: int, folder: Path, say: Callable[[str], None]) -> Iterator[World]:
    """The whole world, up and ready; nothing is sent yet. ``folder`` is where records and logs go."""
    data = Path(tempfile.mkdtemp(prefix="ductor-chaos-"))
    data.chmod(0o755)  # Postgres runs as another user
    shutil.rmtree(folder / "records", ignore_errors=True)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as closing:
        closing.callback(shutil.rmtree, data, ignore_errors=True)
        world = _built(shape, seed, folder, data, say, closing)
        say("starting three brokers and two Postgres servers")
        world.postgres.start()
        world.brokers.start()
        migrate(world.postgres.primary.url())
        plans = plan(world.topics, app.queues(), partitions=shape.partitions, replicas=REPLICAS)
        world.brokers.until(lambda: not {each.name for each in plans} - made(world, plans), "topics")
        world.fleet.start_all()
        world.fleet.until_ready()
        world.observer.begin()
        say(f"{', '.join(world.fleet.places)} are ready")
        yield world


def _keep_logs(data: Path, target: Path) -> None:
    """What brokers and databases have written goes with the report."""
    for path in (*data.glob("*/kafka.log*"), *data.glob("*/postgres.log*")):
        shutil.copy(path, target / f"{path.parent.name}-{path.name}")


def _built(
    shape: Shape, seed: int, folder: Path, data: Path, say: Callable[[str], None], closing: contextlib.ExitStack
) -> World:
    network = Network()
    closing.callback(network.close)
    network.register("client", os.getpid())
    recorder = Recorder(folder / "records", "main")
    recorder.note("clock", wall=time.time())
    closing.callback(recorder.close)
    brokers = Brokers(data, network)
    closing.callback(brokers.stop)
    postgres = Pair(data, network, shape.disk_mb)
    closing.callback(postgres.stop)
    closing.callback(_keep_logs, data, folder / "logs")
    topics = Topics(app.namespace)
    fleet = Fleet(folder / "logs", _environment(shape, folder, brokers, postgres), network, recorder)
    clocks = _places(fleet, shape, data)
    closing.callback(fleet.stop)
    load = Load(brokers.bootstrap, topics.run_events, shape.rate, seed, recorder)
    closing.callback(load.close)
    observer = Observer(brokers, topics.run_lifecycle, topics.dead_letters, recorder)
    closing.callback(observer.close)
    return World(
        shape, folder, network, brokers, postgres, fleet, load, observer, recorder, topics, say, clock_files=clocks
    )


def _environment(shape: Shape, folder: Path, brokers: Brokers, postgres: Pair) -> Callable[[], Mapping[str, str]]:
    def environment() -> Mapping[str, str]:
        return {
            "DUCTOR_KAFKA_BOOTSTRAP": brokers.bootstrap,
            "DUCTOR_DATABASE_URL": postgres.url,
            "DUCTOR_KAFKA_PROTOCOL": shape.protocol,
            "DUCTOR_LOG_FORMAT": "json",
            "CHAOS_RECORDS": str((folder / "records").absolute()),
        }

    return environment


def _places(fleet: Fleet, shape: Shape, data: Path) -> dict[str, Path]:
    """The first coordinator and the first worker are static members of their groups, the others are not."""
    library, clocks = faketime() if shape.clocks else None, {}
    for role, count in (("coordinator", shape.coordinators), ("serve", shape.serves), ("worker", shape.workers)):
        for number in range(1, count + 1):
            clock: dict[str, Any] = {}
            if library is not None:
                file = data / f"clock-{role}-{number}"
                file.write_text("+0\n", encoding="ascii")
                clocks[f"{role}-{number}"] = file
                clock = {
                    "LD_PRELOAD": library,
                    "FAKETIME_TIMESTAMP_FILE": str(file),
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                    "FAKETIME_CACHE_DURATION": "1",
                }
            fleet.add(role, number, instance=role != "serve" and number == 1, **clock)  # type: ignore[arg-type]
    return clocks
