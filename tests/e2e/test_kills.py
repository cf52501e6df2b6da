"""Processes are killed -9 all the time, and started again; nothing is lost, nothing is doubled (issue 3, proof 1)."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from fleet import Fleet, fleet_of
from rig import CRC32, HOME, Rig
from support import until

from ductor_stream.cli.demo_checks import checks

RUNS = 2_000
CHAOS_S = float(os.environ.get("DUCTOR_CHAOS_SECONDS", "60"))
KILL_EVERY_S = 1.0
PROCESSES = 3
"""Coordinators, and workers."""

IDS = [f"order-{n}" for n in range(RUNS)]
STEPS = {run_id: 5 + n % 4 for n, run_id in enumerate(IDS)}
CLOSED = {"completed", "failed", "cancelled", "terminated", "timed_out"}


def is_paid(run_id: str) -> bool:
    """Whether it waits for a signal."""
    return STEPS[run_id] % 4 == 0


def expected(run_id: str) -> list[int]:
    """Its result."""
    return [*range(STEPS[run_id] - 3), *([7] if is_paid(run_id) else []), 0, 1, 2]


class Chaos:
    """Kills a random process every second, and starts it again. Half of them have stable names."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._random = random.Random(seed)
        self.kills = 0

    def play(self, seconds: float) -> None:
        """Go on for so long."""
        pace = threading.Event()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            victim = self._random.choice(self._fleet.running())
            victim.kill()
            self.kills += 1
            self._fleet.restart(victim)
            pace.wait(KILL_EVERY_S)


def produce(rig: Rig, over_s: float) -> None:
    """Order all runs, spread over that time; the signals come before, with or after their starts; both partitioners."""
    pace = threading.Event()
    for n, run_id in enumerate(IDS):
        how = CRC32 if n % 3 == 0 else HOME
        if is_paid(run_id) and n % 2:
            rig.signal(run_id, 7, name="paid", signal_id="s", partitioner=how)
        rig.start(run_id, workflow="order", input=STEPS[run_id], partitioner=how)
        if is_paid(run_id) and not n % 2:
            rig.signal(run_id, 7, name="paid", signal_id="s", partitioner=how)
        pace.wait(over_s / RUNS)


@contextmanager
def producing(rig: Rig, over_s: float) -> Iterator[None]:
    """All is produced when the block has been left."""
    thread = threading.Thread(target=produce, args=(rig, over_s), daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive(), "not everything could be produced"


def lifecycle_faults(rig: Rig) -> Iterator[str]:
    """Gaps in a run's ``seq``, one event's id on two events, another end than Postgres has."""
    seen: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for message in rig.read(rig.topics.run_lifecycle):
        value = message.value()
        assert value is not None
        data = json.loads(value)
        before = seen[data["run_id"]].setdefault(data["seq"], data)
        if before != data:
            yield f"two events have one id: {before}, {data}"
    for run_id in IDS:
        events = seen[run_id]
        if sorted(events) != list(range(1, len(events) + 1)) or not events:
            yield f"{run_id}: seq has a gap: {sorted(events)}"
        elif (last := events[len(events)])["status"] != "completed" or last["result"] != expected(run_id):
            yield f"{run_id}: its last event is {last}"


def effect_faults(fleet: Fleet) -> Iterator[str]:
    """Runs of which a step had no effect, or one under a key that no node has."""
    keys: dict[str, set[str]] = defaultdict(set)
    for each in fleet.effects():
        keys[each["run"]].add(each["key"])
    for run_id in IDS:
        if len(keys[run_id]) != STEPS[run_id]:
            yield f"{run_id}: effects of {len(keys[run_id])} of {STEPS[run_id]} steps"


@pytest.mark.timeout(300 + CHAOS_S)
def test_kill_9_of_random_processes_loses_and_doubles_nothing(rig: Rig) -> None:
    """R3, R5, R6, R7: three coordinators, three workers, a tenth of the attempts fails, a kill every second."""
    seed = random.randrange(1 << 32)
    with fleet_of(rig) as fleet:
        for n in range(PROCESSES):
            for role in ("coordinator", "worker"):
                fleet.start(role, instance=f"{role}-{n}" if n == 0 else None)  # type: ignore[arg-type]
        fleet.until_ready()
        chaos = Chaos(fleet, seed)
        with producing(rig, CHAOS_S * 0.9):
            chaos.play(CHAOS_S)
        rig.until_status("completed", *IDS, within_ms=120_000)
        rig.check()
        with psycopg.connect(rig.database, autocommit=True) as connection:
            faults = [each.faults for each in checks(connection, rig.namespace, IDS)]
        assert faults == [[], []], f"seed {seed}, {chaos.kills} kills"
        assert [rig.run(run_id)["result"] for run_id in IDS[::50]] == [expected(run_id) for run_id in IDS[::50]]
        assert list(effect_faults(fleet)) == []
        assert until(lambda: not list(lifecycle_faults(rig)) or list(lifecycle_faults(rig))) is True
        assert rig.letters() == []
