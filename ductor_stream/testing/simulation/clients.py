"""Clients: they start runs, signal and command them, send things twice, late and to any partition.

Some are the production client (``client.core`` over memory ports), others know the page of the wire alone.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any

import msgspec

from ductor_stream.client.core import Core, Target
from ductor_stream.client.lifecycle_feed import LifecycleFeed
from ductor_stream.outcomes import Outcome
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.requests import RequestEncoder
from ductor_stream.testing.simulation import programs
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.world import World

_CONFLICTS = ["use_existing", "use_existing", "reject", "restart_if_closed", "restart_if_failed", "terminate_existing"]
_COMMANDS = ["cancel", "terminate", "pause", "resume", "retry", "pause", "cancel", "reset", "reset"]
_NODES = ["1", "2", "2", "3", "1.1"]
"""Nodes that many programs have; a reset to one that is not there is refused."""


def is_to_transition(command_id: str) -> bool:
    """Whether the reset of that id names a transition; others name a node."""
    return command_id.rpartition("-")[2].startswith("t")


class Sent(msgspec.Struct, frozen=True):
    """A message that is in the log: ``kind`` is start, signal or command."""

    run_id: str
    kind: str
    id: str
    topic_id: str
    partition: int
    offset: int


class _Log:
    """``client.ports.ClientLog`` of the simulation."""

    def __init__(self, send: Callable[[Outgoing], None]) -> None:
        self._send = send
        self.hear: Callable[[LifecycleEvent], None] = lambda event: None

    def send(self, record: Outgoing) -> Future[None]:
        self._send(record)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def follow(self, heard: Callable[[LifecycleEvent], None]) -> None:
        self.hear = heard

    def close(self, timeout: float) -> None:
        """Nothing is on its way."""


class Clients:
    """All clients of a world. ``sent`` is what they know to be in the log."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world, self._broker = world, broker
        self._agenda: list[tuple[int, int, str, dict[str, Any]]] = []
        self._number = 0
        self.sent: list[Sent] = []
        self._foreign: set[str] = set()
        """Runs whose clients are others': of what those start, a client without a database need not know the end."""
        self._place = ("", 0, 0)
        self.run_ids: list[str] = []
        self.waiting: list[tuple[Target, tuple[str, int, int], Future[Outcome]]] = []
        """Starts of the production client, where they went (topic id, partition, offset), and what became of them."""
        self._log = _Log(self._put)
        encoder = RequestEncoder(broker.names, format=world.rng.choice(["json", "avro"]))
        self._core = Core(programs.app, encoder, self._log, LifecycleFeed(self._log))
        for number in range(world.rng.randint(7, 11)):
            self._plan_run(f"run-{number}")

    def _plan_run(self, run_id: str) -> None:
        if run_id in self._world.limits.dropped:
            return
        rng = Random(f"{self._world.seed}/{run_id}")
        self.run_ids.append(run_id)
        if rng.random() < 0.3:
            self._foreign.add(run_id)
        at = rng.randint(0, 10_000_000)
        held_up = rng.random() < 0.15
        body = {
            "type": "run.start",
            "workflow": "hasty" if rng.random() < 0.15 else "program",
            "input": programs.LAPS if held_up and rng.random() < 0.5 else programs.draw(rng),
            "start_id": f"{run_id}-start",
        }
        self._plan(at, run_id, body)
        for number in range(rng.choice([0, 0, 1, 2])):
            more = {**body, "start_id": f"{run_id}-start-{number}", "on_conflict": rng.choice(_CONFLICTS)}
            self._plan(at + rng.randint(-2_000_000, 30_000_000), run_id, more)
        for number in range(rng.randint(0, 8)):
            signal = {"type": "run.signal", "name": rng.choice(programs.SIGNALS), "payload": number}
            self._plan(rng.randint(0, 40_000_000), run_id, {**signal, "signal_id": f"{run_id}-s{number}"})
        for number in range(rng.choice([0, 0, 0, 1, 2])):
            command: dict[str, Any] = {"type": f"run.{rng.choice(_COMMANDS)}", "command_id": f"{run_id}-c{number}"}
            if command["type"] == "run.reset":
                if rng.random() < 0.5:
                    command["to_node"] = rng.choice(_NODES)
                else:
                    command["to_transition"], command["command_id"] = rng.randint(1, 12), f"{run_id}-t{number}"
            self._plan(at + rng.randint(0, 40_000_000), run_id, command)
        if held_up:
            # While it is paused, a cancel waits with all that comes meanwhile, and may meet the run's next execution.
            when = at + rng.randint(0, 1_000_000)
            for number, order in enumerate(("pause", "cancel", "resume")):
                self._plan(when, run_id, {"type": f"run.{order}", "command_id": f"{run_id}-p{number}"})
                when += rng.randint(1, 5_000_000)

    def _plan(self, at: int, run_id: str, body: dict[str, Any]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (max(0, at), self._number, run_id, body))

    def next_us(self) -> int | None:
        """When something is sent next."""
        return self._agenda[0][0] if self._agenda else None

    def act(self) -> None:
        """Send what is due first; now and then again, later."""
        _, _, run_id, body = heapq.heappop(self._agenda)
        self.send(run_id, body)
        if self._world.chance("garbage"):
            self._spoil(run_id)
        if self._world.chance("duplicate"):
            self._plan(self._world.us + self._world.rng.randint(1, 20_000_000), run_id, body)

    def _spoil(self, run_id: str) -> None:
        """What is no message, and results of attempts that nobody was given."""
        rng, names = self._world.rng, self._broker.names
        fence = {"run_id": run_id, "execution": rng.randint(1, 3), "node_id": "7", "generation": 9}
        stray = json.dumps({"type": "attempt.finished", "outcome": "completed", "output": 1, **fence}).encode()
        value = rng.choice([None, b"", b"\xff\x00", b"{}", b'{"type":"run.start"}', b"[" * 2_000, stray])
        key = rng.choice([run_id.encode(), b"nobody", b"\xff", b""])
        headers = (("ductor-wire", rng.choice([b"1", b"1", b"\xff"])),)
        topics = [*names.inbound_names, *map(names.tasks, programs.QUEUES)]
        self._broker.append(rng.choice(topics), key, value, headers)

    def help(self, run_id: str, body: dict[str, Any]) -> None:
        """A message that a stuck run needs, with an id of its own."""
        self._number += 1
        kind = "signal_id" if body["type"] == "run.signal" else "command_id"
        self.send(run_id, {**body, kind: f"{run_id}-help{self._number}"})

    def hear(self, event: LifecycleEvent) -> None:
        """A lifecycle event is in its topic."""
        self._log.hear(event)

    def send(self, run_id: str, body: dict[str, Any]) -> None:
        """Put a message into the log."""
        kind = body["type"].removeprefix("run.")
        if run_id in self._foreign:
            self._put(Outgoing(self._broker.names.run_events, run_id.encode(), json.dumps(body).encode()))
        elif kind == "start":
            self._start(run_id, body)
        elif kind == "signal":
            self._core.signal(run_id, body["name"], body["payload"], body["signal_id"])
        else:
            self._core.command(run_id, kind, "", body["command_id"], body.get("to_node"), body.get("to_transition"))
        kind = kind if kind in ("start", "signal") else "command"
        topic_id, place, offset = self._place
        self._world.note("client", f"{body['type']} {run_id} {body[f'{kind}_id']} to {place}/{offset}")
        self.sent.append(Sent(run_id, kind, body[f"{kind}_id"], topic_id, place, offset))

    def _start(self, run_id: str, body: dict[str, Any]) -> None:
        target, _ = self._core.start(
            body["workflow"],
            body["input"],
            {"run_id": run_id, "start_id": body["start_id"], "on_conflict": body.get("on_conflict", "use_existing")},
        )
        self.waiting.append((target, self._place, self._core.outcome(target)))

    def _put(self, record: Outgoing) -> None:
        world, topic = self._world, self._broker.topics[record.topic]
        partition = world.rng.randrange(len(topic.partitions)) if world.chance("elsewhere") else None
        kept = self._broker.append(record.topic, record.key, record.value, record.headers, partition)
        place = next(p for p, stored in enumerate(topic.partitions) if stored.records and stored.records[-1] is kept)
        self._place = (topic.id, place, kept.offset)
