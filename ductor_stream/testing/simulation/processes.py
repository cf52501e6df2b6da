"""A coordinator process of the simulation: the production ``Coordinator`` on memory ports behind a gate that fails."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.actions import DispatchAttempt
from ductor_stream.errors import LogUnavailable, StoreUnavailable
from ductor_stream.ports import Batch, Outgoing
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.limits import MAX_RECORD_BYTES
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.protocol.writing import Format
from ductor_stream.telemetry.declaration import Labelled
from ductor_stream.telemetry.metrics import Metrics, declarations
from ductor_stream.testing.simulation import programs
from ductor_stream.testing.simulation.gate import Crash, Gate, Outcome
from ductor_stream.testing.simulation.local_workers import LocalFleet
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.memory_database import DatabaseServer
from ductor_stream.testing.simulation.memory_log import MemoryLog
from ductor_stream.testing.simulation.memory_store import MemoryStore
from ductor_stream.testing.simulation.workers import Fleet
from ductor_stream.testing.simulation.world import VirtualClock, World

CLUSTER = "simulated"
_LOG_CALLS = frozenset(
    {"poll", "end_offsets", "start_offsets", "topic_ids", "partition_counts", "healthy", "ask_tasks"}
)
_SILENT = frozenset({"produce", "flush", "seek"})
"""Calls of the log that do not fail: what becomes of their records is told later."""


class _Encoder(Encoder):
    """Now and then a task cannot be written down, or becomes larger than any worker takes."""

    def __init__(self, topics: Topics, format: Format, world: World) -> None:
        super().__init__(topics, format=format)
        self._world = world

    def task(
        self, run_id: str, context: Mapping[str, str], action: DispatchAttempt, now_ms: int, partitions: int | None
    ) -> Outgoing:
        record = super().task(run_id, context, action, now_ms, partitions)
        if not self._world.chance("poison"):
            return record
        if self._world.rng.random() < 0.5:
            raise ValueError("simulated")
        return msgspec.structs.replace(record, value=record.value + b" " * MAX_RECORD_BYTES)


class Interloper(Protocol):
    """Lets others act while a process stands still in the middle of a call."""

    def meanwhile(self, process: Process, *, expelled: bool = False) -> None:
        """Some steps of everybody else; with ``expelled`` for longer than its session lasts."""


class Faulty(Gate):
    """The gate of one process."""

    def __init__(self, world: World, interloper: Interloper) -> None:
        self._world, self._interloper = world, interloper
        self.process: Process | None = None
        self._locked = False

    def enter(self, call: str) -> None:
        world, process = self._world, self.process
        if process is None:
            return
        if process.dead:
            raise Crash(process.name, call)
        if not world.faulty:
            return
        if world.chance("crash"):
            process.dead = True
            raise Crash(process.name, call)
        # Who stands still before it takes a partition raises an epoch that is another's by then.
        stalls = call == "take" and world.chance("stall")
        if stalls or world.chance("pause"):
            self._interloper.meanwhile(process, expelled=stalls)
            if process.dead:
                raise Crash(process.name, call)
        if call == "lock":
            self._locked = True
        if call in _LOG_CALLS:
            if world.us < world.log_down_until or world.chance("log_away"):
                raise LogUnavailable("simulated")
        elif call not in _SILENT and (world.us < world.store_down_until or world.chance("store_away")):
            raise StoreUnavailable("simulated")

    def leave(self, call: str) -> None:
        process = self.process
        if process is not None and (process.dead or self._world.chance("crash")):
            process.dead = True
            raise Crash(process.name, f"after {call}")
        if process is not None and self._world.chance("pause"):
            self._interloper.meanwhile(process)

    def outcome(self, batch: Batch) -> Outcome:
        world, locked = self._world, self._locked
        self._locked = False
        found: Outcome = "lands"
        if world.chance("refused"):
            found = "refused"
        elif world.chance("unknown"):
            unknown: tuple[Outcome, ...] = ("unknown_landed", "unknown_lost", "unknown_late")
            found = world.rng.choice(unknown)
        elif batch.runs and not locked and world.chance("conflict"):
            found = "conflict"
        elif batch.runs and batch.runs[0].status != "failed" and world.chance("poison"):
            # Never what fails the run: that has nothing of the data that could not be stored.
            found = "poisoned"
        where = " ".join(f"{p.partition}:{p.previous}->{p.next}" for p in batch.partitions)
        runs = " ".join(f"{run.run_id}@{run.expected + 1}:{run.status}" for run in batch.runs)
        assert self.process is not None
        if found == "lands":
            world.committers.add(self.process.name)
        world.note(self.process.name, f"commit {found} {where} [{runs}]")
        return found

    def idle(self, seconds: float) -> None:
        if self.process is not None:
            self.process.idle_until = max(self.process.local_until, self._world.us + int(seconds * 1e6))

    def share(self, available: int) -> int:
        if not self._world.faulty or available == 0:
            return available
        rng = self._world.rng
        # Nothing now and then: mostly it would be a turn in which nothing happens.
        return 0 if rng.random() < 0.1 else rng.randint(1, available)

    def delivers(self) -> bool:
        return not self._world.faulty or self._world.rng.random() < 0.2


class Process:
    """One incarnation of a coordinator process."""

    def __init__(self, name: str, world: World, interloper: Interloper, cluster: Cluster) -> None:
        self.name, self.dead, self.busy = name, False, False
        self.idle_until = self.local_until = 0
        gate = Faulty(world, interloper)
        self.clock = VirtualClock(world)
        self.log = MemoryLog(cluster.broker, self.clock, gate)
        self.store = MemoryStore(cluster.server, gate, cluster.stray)
        self.store.namespace(programs.NAMESPACE, CLUSTER, cluster.partitions)
        self.clock.observe(world.ms)
        topics, format = cluster.broker.names, world.rng.choice(cluster.formats)
        local = LocalFleet(world, cluster.broker, cluster.fleet, self._wait) if cluster.syncmatch else None
        self.coordinator = Coordinator(
            cluster.config,
            cluster.definitions,
            topics,
            (self.store, self.log, self.clock, local),
            (InboundDecoder(topics), Encoder(topics, format=format), WorkerCodec()),
            cluster.metrics,
            partitions=cluster.partitions,
            new_token=lambda: str(uuid.UUID(int=world.rng.getrandbits(128))),
            jitter=world.rng.random,
        )
        # Of the committer alone: what a take-over sends again was written down once.
        self.coordinator.committer._encoder = _Encoder(topics, format, world)
        self.log.subscribe(self.coordinator.ownership)
        gate.process = self

    def _wait(self, us: int) -> None:
        self.local_until = us

    def ready(self, us: int) -> bool:
        """Whether it would do something now."""
        return not self.dead and not self.busy and (self.idle_until <= us or self.log.news())

    def bury(self) -> None:
        """The process is gone: its coroutines must not be found by the garbage collector."""
        self.dead = True
        self.coordinator.cache.close(range(1000))


def config_of(world: World) -> CoordinatorConfig:
    """What its processes are set to: bounds that are met, and those that are the rule."""
    rng = world.rng
    return CoordinatorConfig(
        batch_limit=rng.choice([1, 3, 20, 500]),
        unconfirmed_limit=rng.choice([2, 5, 64]),
        unconfirmed_bytes=rng.choice([1_000, 4_000, 128_000_000, 128_000_000]),
        idle_poll_s=rng.choice([2.0, 5.0, 10.0]),
        horizon_ms=rng.choice([2_000, 30_000, 600_000]),
        overdue_wait_s=rng.choice([0.5, 10.0, 10.0]),
        cached_runs=rng.choice([1, 3, 50_000, 50_000]),
        load_bytes=rng.choice([1, 2_000, 32_000_000]),
        inbox_limit=rng.choice([1, 5, 500]),
        sweep_s=rng.choice([1.0, 5.0]),
        confirm_idle_s=rng.choice([0.05, 0.25]),
        conflict_backoff_ms=rng.choice([2, 20]),
        conflict_tries=rng.choice([0, 3]),
        history_kept=rng.choice([0, 4, 10_000]),
    )


class Cluster:
    """What processes share."""

    def __init__(self, broker: Broker, server: DatabaseServer, fleet: Fleet, config: CoordinatorConfig) -> None:
        self.broker, self.server, self.fleet, self.config = broker, server, fleet, config
        self.partitions = 0
        self.syncmatch = False
        self.formats: list[Format] = ["json"]
        """``DUCTOR_ENCODING`` of processes: with several, each has one of them, as while that is being changed."""
        self.stray: list[Batch] = []
        self.definitions = programs.RELEASES["first"]
        self.metrics = _metrics


class _Uncounted:
    """In the place of each metric: nobody looks at them here, and counting would cost a twentieth."""

    def inc(self, amount: float = 1) -> None:
        """Nothing."""

    dec = set = observe = inc


def _uncounted() -> Metrics:
    """Metrics that are declared and indexed as ever; those of workers are few, and are counted."""
    found = Metrics()
    for name, declared in declarations():
        if declared.group == "coordinator":
            metric = getattr(found, name)
            setattr(found, name, _family(metric) if isinstance(metric, Labelled) else _Uncounted())
    return found


def _family(real: Labelled[Any]) -> Labelled[Any]:
    def make(values: tuple[str, ...]) -> Any:
        real[values]  # whoever gives it the wrong number of labels hears of it
        return _Uncounted()

    return Labelled(make, lambda values: None)


_metrics = _uncounted()
