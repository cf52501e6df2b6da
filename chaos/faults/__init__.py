"""What can go wrong. A fault is a context manager over the world: it begins, holds for a while, and is mended.

``FAULTS`` has all of them by name. ``claims`` are what a fault must have for itself: two faults with different claims may
reign at the same time. None knows what the checks look for; those that destroy input tell exactly which.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from chaos.disk import mountable
from chaos.faults import brokers, databases, members, networks, storms, topics
from chaos.network import callers_are_known
from chaos.world import World, faketime

Begin = Callable[[World, random.Random], AbstractContextManager[str]]
"""Enter: the fault begins, and says what it is. Leave: it is mended."""

EVERYTHING = frozenset({"members", "network", "kafka", "postgres", "clock", "storm"})


@dataclass(frozen=True)
class Fault:
    """One kind. ``hold_s`` is for how long it lasts, at least and at most, before it is mended."""

    name: str
    begin: Begin
    claims: frozenset[str]
    hold_s: tuple[float, float]

    @property
    def told(self) -> str:
        """What it does."""
        return (self.begin.__doc__ or "").splitlines()[0]


def _of(name: str, begin: Begin, claims: str | frozenset[str], at_least_s: float, at_most_s: float) -> Fault:
    owned = frozenset(claims.split()) if isinstance(claims, str) else claims
    return Fault(name, begin, owned, (at_least_s, at_most_s))


_ALL = (
    _of("kill-coordinator", members.kill_coordinator, "members", 0.0, 4.0),
    _of("kill-worker", members.kill_worker, "members", 0.0, 4.0),
    _of("kill-half", members.kill_half, "members", 0.0, 2.0),
    _of("freeze", members.freeze, "members", 8.0, 14.0),
    _of("rolling-restart", members.rolling_restart, "members", 0.0, 0.0),
    _of("clock", members.clock, "clock", 4.0, 12.0),
    _of("network", networks.between_two, "network", 3.0, 15.0),
    _of("isolate", networks.isolate, "network", 3.0, 12.0),
    _of("broker-kill", brokers.kill, "kafka", 2.0, 8.0),
    _of("broker-outage", brokers.kill_two, "kafka", 2.0, 10.0),
    _of("broker-restart", brokers.restart, "kafka", 0.0, 2.0),
    _of("broker-freeze", brokers.freeze, "kafka", 3.0, 10.0),
    _of("leaders", brokers.move_leaders, "kafka", 0.0, 1.0),
    _of("postgres-crash", databases.crash, "postgres", 0.0, 5.0),
    _of("failover", databases.failover, "postgres", 0.0, 5.0),
    _of("split-brain", databases.split_brain, "postgres", 3.0, 12.0),
    _of("disk-full", databases.disk_full, "postgres", 4.0, 12.0),
    _of("storm-postgres", storms.on_postgres, "storm", 3.0, 8.0),
    _of("storm-kafka", storms.on_kafka, "storm", 3.0, 8.0),
    _of("raise-partitions", topics.raise_partitions, "kafka", 0.0, 1.0),
    _of("recreate-topic", topics.recreate, "kafka", 0.0, 1.0),
    _of("recreate-input", topics.recreate_input, EVERYTHING, 2.0, 5.0),
    _of("retention", topics.retention, EVERYTHING, 2.0, 5.0),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _ALL}


def unavailable() -> dict[str, str]:
    """Faults that cannot be had on this machine, each with the reason."""
    found: dict[str, str] = {}
    if not callers_are_known():
        found |= dict.fromkeys(("network", "isolate"), "who calls is told by /proc/net/tcp, which Linux has")
    if not mountable():
        found["disk-full"] = "each Postgres needs a tmpfs of its own, for which this process must be root on Linux"
    if faketime() is None:
        found["clock"] = "libfaketime is not installed: pip install -r chaos/requirements.txt"
    return found
