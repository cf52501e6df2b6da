"""One seed: a storm in which everything may go wrong, then calm weather in which every run must close.

All that happens is one step after the other, and the seed's generator decides which is next. A process that stands
still in the middle of a call lets others take steps meanwhile, so that two owners meet at every point of their turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from ductor_stream.errors import DuctorError
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import decode_lifecycle
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation import checks, checks_ends, programs
from ductor_stream.testing.simulation.checks_tasks import R5TasksNotSwallowed
from ductor_stream.testing.simulation.clients import Clients
from ductor_stream.testing.simulation.crew import Crew
from ductor_stream.testing.simulation.gate import Crash
from ductor_stream.testing.simulation.memory_broker import Broker, Kept, Topic
from ductor_stream.testing.simulation.memory_database import DatabaseServer
from ductor_stream.testing.simulation.memory_log import MemoryLog
from ductor_stream.testing.simulation.processes import CLUSTER, Cluster, Process, config_of
from ductor_stream.testing.simulation.settling import Rest, waits_of
from ductor_stream.testing.simulation.sightings import Sightings
from ductor_stream.testing.simulation.weather import Weather
from ductor_stream.testing.simulation.workers import Fleet
from ductor_stream.testing.simulation.world import SESSION_US, Limits, Violation, World

_STORM_US = 40_000_000
_STORM_STEPS = 2_500
_CALM_US = 1_800_000_000
"""Within half an hour of virtual time after the last fault, every run has closed."""
_CALM_STEPS = 30_000
_HELP_US = 5_000_000
_DEEPEST = 2


class Report(msgspec.Struct, frozen=True):
    """What one seed was like."""

    seed: int
    digest: str
    runs: int
    owners: int
    """Coordinator processes that committed something; one that comes back after its death is not counted anew."""
    events: int
    faults: int
    kinds: dict[str, int]
    seen: dict[str, int]
    """Rarer ways of the product that it went, as often: see ``Sightings``."""
    asked: list[str]
    """Ids of the runs that clients started; their children are beside these."""
    trace: list[str]
    broken: str = ""
    """The rule that was broken, and how; empty when all held."""


class Episode:
    """The world of one seed, with everybody in it."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.seed = seed
        self.world = World(seed, limits)
        rng = self.world.rng
        self.partitions = rng.randint(1, 4)
        topics = Topics(programs.NAMESPACE)
        inbound = self.partitions + rng.choice([0, 0, 1])
        self.broker = Broker(topics, inbound, programs.QUEUES, eager=rng.random() < 0.5)
        self.server = DatabaseServer(lambda: self.world.ms)
        self.database = self.server.open(programs.NAMESPACE, CLUSTER, self.partitions)
        self.fleet = Fleet(self.world, self.broker)
        self.cluster = Cluster(self.broker, self.server, self.fleet, config_of(self.world))
        self.cluster.partitions, self.cluster.syncmatch = self.partitions, rng.random() < 0.4
        self.cluster.formats = rng.choice([["json"], ["json"], ["json", "avro"]])
        self.clients = Clients(self.world, self.broker)
        self.recreated: set[str] = set()
        self._timely = checks_ends.R9TimersInTime()
        self.checkers: list[checks.Checker] = [
            self._timely,
            checks.R1OneWriter(self.partitions),
            checks.R3Fence(),
            checks.R4CommitBeforeDispatch(topics, self.database),
            checks.R5NothingSwallowed(topics),
            checks.R6AppliedOnce(),
            checks.R7IdempotencyKey(topics),
            checks.R8StaleResults(),
            checks_ends.R9NoSilentHang(),
            checks_ends.R9CancelIsTold(),
            checks_ends.R9InputBeforeTimers(
                self.broker, lambda: self.world.us // 1000, 1000 * self.cluster.config.overdue_wait_s
            ),
            checks_ends.R9ContendedIsTold(topics),
            checks.RowsAgree(),
        ]
        tasks, self.sightings = R5TasksNotSwallowed(topics), Sightings(topics)
        self.checkers += [tasks, self.sightings]
        for hook in ("committing", "committed", "lost", "took"):
            getattr(self.database, f"on_{hook}").extend(self._hooks(hook))
        self._on_landed, self._on_heard = self._hooks("landed"), self._hooks("heard")
        self._on_handed = self._hooks("handed")
        self.broker.landed, self.broker.handed = self._landed, self._handed
        self.processes = [self._process(f"p{number}") for number in range(rng.randint(2, 3))]
        self.orphans: list[MemoryLog] = []
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        skies: dict[str, Callable[[], None]] = {
            "outage": self._outage,
            "rebalance": self._rebalance,
            "recreate": self._recreate,
            "clock": self._clock,
            "redeploy": lambda: self._redeploy(rng.choice(list(programs.RELEASES))),
            "cut": self._cut,
        }
        self._weather = Weather(self.world, skies)
        self._number = self._depth = 0
        metrics = self.cluster.metrics
        self.rest = Rest(self)
        self.crew = Crew(self.world, self.broker, self.fleet, tasks, metrics, self._at, programs.QUEUES)

    def _hooks(self, name: str) -> list[Callable[..., None]]:
        return [getattr(each, name) for each in self.checkers if each.hears(name)]

    # -- observers --------------------------------------------------------------------------

    def _landed(self, topic: Topic, partition: int, record: Kept) -> None:
        for landed in self._on_landed:
            landed(topic, partition, record)
        if topic.name == self.broker.names.run_lifecycle:
            event = decode_lifecycle(record.key, record.value, record.headers)
            for heard in self._on_heard:
                heard(event)
            self.clients.hear(event)
        if topic.name in self.crew.topics:
            self.crew.wake()
        elif self.broker.names.queue_of(topic.name) is not None:
            self.fleet.took(topic, partition, record)

    def _handed(self, records: Sequence[Outgoing]) -> None:
        for handed in self._on_handed:
            handed(records)

    # -- the whole --------------------------------------------------------------------------

    def run(self) -> Report:
        """Storm, calm, checks."""
        broken = ""
        try:
            self._storm()
            self._calm()
            self.rest.check()
        except Violation as found:
            broken = str(found)
            self.world.note("checker", broken)
        finally:
            for process in self.processes:
                process.bury()
        inbound = [self.broker.topics[name] for name in self.broker.names.inbound_names]
        events = sum(stored.end for topic in inbound for stored in topic.partitions)
        fired = dict(sorted(self.world.fired.items()))
        return Report(
            self.seed, self.world.digest(), len(self.database.runs), len(self.world.committers), events, sum(fired.values()), fired,
            dict(sorted(self.sightings.seen.items())), self.clients.run_ids, self.world.trace, broken,
        )  # fmt: skip

    def _storm(self) -> None:
        for _ in range(_STORM_STEPS):
            if self.world.us > _STORM_US and self.clients.next_us() is None:
                break
            self.step()

    def _calm(self) -> None:
        world = self.world
        world.calm()
        self._timely.calm_since = world.ms
        world.note("world", "calm")
        if world.fired["redeploy"]:
            self._redeploy("patched")
        began, help_at, busy = world.us, world.us, False
        for _ in range(_CALM_STEPS):
            if not busy and self.rest.reached():
                return
            if world.us - began > _CALM_US:
                break
            if world.us >= help_at:
                self._help()
                help_at = world.us + _HELP_US
            busy = self.step(help_at)
        raise Violation("R9", f"not at rest after {(world.us - began) / 1e6:.0f} s of calm: {self.rest.unsettled()}")

    def _help(self) -> None:
        """Signals for those who wait, a resume for those who stand still: what a person would do."""
        for run_id in sorted(self.database.runs):
            run = self.database.runs[run_id]
            if run.closed_at is not None:
                continue
            if run.status in ("paused", "suspended"):
                self.clients.help(run_id, {"type": "run.resume"})
                continue
            for name in waits_of(self.database, run_id):
                self.clients.help(run_id, {"type": "run.signal", "name": name, "payload": 0})

    # -- steps ------------------------------------------------------------------------------

    def step(self, until: int | None = None) -> bool:
        """One thing happens; or nothing can (False), and time passes up to when something will."""
        self._weather.step()
        options = self._options()
        if not options:
            coming = [at for at in self._coming() if at is not None]
            if until is not None:
                coming.append(until)
            self.world.advance(min(coming, default=self.world.us + 1_000_000) - self.world.us)
            return False
        random = self.world.rng.random
        self.world.us += int(random() * 400)
        options[int(random() * len(options))]()
        return True

    def _options(self) -> list[Callable[[], None]]:
        us = self.world.us
        found: list[Callable[[], None]] = []
        for process in self.processes:
            if process.dead:
                continue
            if process.ready(us):
                found.append(partial(self.turn, process))
            if process.log.flying:
                found.append(partial(self._deliver, process.log))
        found += [partial(self._deliver, log) for log in self.orphans if log.flying]
        self.crew.add_options(found, us)
        for actor in (self.fleet, self.clients):
            at = actor.next_us()
            if at is not None and at <= us:
                found.append(actor.act)
        if self.agenda and self.agenda[0][0] <= us:
            found.append(lambda: heapq.heappop(self.agenda)[2]())
        if self.cluster.stray:
            found.append(self._stray)
        return found

    def _coming(self) -> Iterator[int | None]:
        yield from (process.idle_until for process in self.processes if not process.dead and not process.busy)
        yield from self.crew.coming()
        yield self.fleet.next_us()
        yield self.clients.next_us()
        if self.agenda:
            yield self.agenda[0][0]

    def logs(self) -> list[MemoryLog]:
        """Producers with records on their way, those of processes that are gone too."""
        return [process.log for process in self.processes if not process.dead] + self.orphans

    def turn(self, process: Process) -> None:
        """One turn of a coordinator, which may be its last."""
        process.idle_until, process.busy = self.world.us, True
        try:
            process.coordinator.guarded_turn()
            self.sightings.turned(process.coordinator)
        except Crash as crash:
            if crash.process != process.name:
                raise
            self.world.note(process.name, str(crash))
            self._buried(process)
        except Exception as error:
            # Turn after turn has failed, for a reason that is no outage.
            raise Violation("R9", f"{process.name} ends by itself: {error!r}") from error
        finally:
            process.busy = False

    def meanwhile(self, process: Process, *, expelled: bool = False) -> None:
        """The process stands still; if it does so for longer than its session lasts, its partitions go to others."""
        if self._depth >= _DEEPEST:
            return
        world = self.world
        self._depth += 1
        world.note(process.name, "stands still")
        if expelled or world.chance("expel"):
            self.broker.leave(process.log)
            world.advance(SESSION_US)
        for _ in range(world.rng.randint(1, 30)):
            self.step()
        world.note(process.name, "goes on")
        self._depth -= 1

    def _deliver(self, log: MemoryLog) -> None:
        world = self.world
        flying = world.rng.choice(log.heads())
        if world.chance("undelivered"):
            done = log.answer(flying, "timed out", lands=world.rng.random() < 0.5)
        else:
            done = log.answer(flying)
        if not done:
            world.advance(1_000)

    def _stray(self) -> None:
        batch = self.cluster.stray.pop(self.world.rng.randrange(len(self.cluster.stray)))
        try:
            self.database.commit(batch)
            self.world.note("world", "a stray commit lands")
        except DuctorError as error:
            self.world.note("world", f"a stray commit is refused: {error}")

    # -- weather ----------------------------------------------------------------------------

    def _outage(self) -> None:
        world, rng = self.world, self.world.rng
        us = world.us + rng.randint(100_000, 8_000_000)
        if rng.random() < 0.5:
            world.store_down_until = us
        else:
            world.log_down_until = us

    def _clock(self) -> None:
        world, rng = self.world, self.world.rng
        world.skew_ms += rng.choice([-1, 1]) * rng.choice([50, 2_000, 20_000])
        world.note("world", f"postgres's clock is off by {world.skew_ms} ms")

    def _cut(self) -> None:
        rng = self.world.rng
        self.world.note("world", self.broker.cut(rng.choice(programs.QUEUES), rng))

    def _rebalance(self) -> None:
        """A process is told to end, or is too slow for its session; another one comes in its place."""
        idle = [process for process in self.processes if not process.dead and not process.busy]
        if not idle:
            return
        process = self.world.rng.choice(idle)
        if self.world.rng.random() < 0.5:
            self.world.note(process.name, "is expelled")
            self.broker.leave(process.log)
            return
        self._end(process)

    def _end(self, process: Process) -> None:
        self.world.note(process.name, "ends in good order")
        process.busy = True
        try:
            process.log.close()
        except Crash as crash:
            if crash.process != process.name:
                raise
        self._buried(process)

    def _redeploy(self, release: str) -> None:
        """Other code: processes are ended one after the other, and come back with it."""
        self.world.note("world", f"release {release!r}")
        self.cluster.definitions = programs.RELEASES[release]
        for process in self.processes:
            self._at(self.world.rng.randint(0, 6_000_000), lambda process=process: self._replace(process))  # type: ignore[misc]

    def _replace(self, process: Process) -> None:
        if process.dead:
            return
        if process.busy:
            self._at(500_000, lambda: self._replace(process))
        else:
            self._end(process)

    def _recreate(self) -> None:
        rng = self.world.rng
        names = [*self.broker.names.inbound_names, *map(self.broker.names.tasks, programs.QUEUES)]
        name = rng.choice(names)
        self._create_anew(name)
        if rng.random() < 0.4:
            self._at(rng.randint(500_000, 8_000_000), lambda: self._create_anew(name))

    def _create_anew(self, name: str) -> None:
        self.world.note("world", f"{name} is created anew")
        self.recreated.add(self.broker.topics[name].id)
        self.broker.create(name, len(self.broker.topics[name].partitions))

    def _buried(self, process: Process) -> None:
        """Its session ends later, and what it had produced may be on its way, or not."""
        rng = self.world.rng
        process.bury()
        if rng.random() < 0.5:
            process.log.flying.clear()
        else:
            self.orphans.append(process.log)
        self._at(SESSION_US if rng.random() < 0.7 else 0, lambda: self.broker.leave(process.log))
        self._at(rng.randint(0, 8_000_000), lambda: self._restart(process))

    def _restart(self, old: Process) -> None:
        self.processes[self.processes.index(old)] = self._process(old.name)

    def _process(self, name: str) -> Process:
        return Process(name, self.world, self, self.cluster)

    def _at(self, us: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self.agenda, (self.world.us + us, self._number, what))
