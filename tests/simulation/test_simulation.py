"""The production coordinator through storms: every rule holds, and the same seed is the same world."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from statistics import median

import pytest

from ductor_stream.testing.simulation import Report, simulate
from ductor_stream.testing.simulation.sightings import SIGHTS
from ductor_stream.testing.simulation.world import Faults

SCALE = float(os.environ.get("DUCTOR_TEST_SCALE", "1"))
SEEDS = int(200 * SCALE)
_CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_every_rule_holds(first: int) -> None:
    for seed in range(first, min(first + _CHUNK, SEEDS)):
        report = simulate(seed)
        again = f"python -m ductor_stream.testing.simulation --seeds {seed} --trace"
        assert not report.broken, f"{report.broken}\nagain: {again}"


def _traced(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "ductor_stream.testing.simulation", "--seeds", str(seed), "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.rpartition("1 seeds in")[0]


@pytest.mark.parametrize("seed", [5, 46, 56])
def test_the_same_seed_gives_the_same_trace_in_every_process(seed: int) -> None:
    first, second = _traced(seed, "1"), _traced(seed, "2")
    assert first
    assert first == second


def test_a_world_is_worth_its_time() -> None:
    reports: list[Report] = [simulate(seed) for seed in range(60)]
    middle = {
        name: median(getattr(report, name) for report in reports) for name in ("runs", "owners", "events", "faults")
    }
    assert middle["runs"] >= 3
    assert middle["owners"] >= 2
    assert middle["events"] >= 200
    assert middle["faults"] >= 5
    fired = Counter(kind for report in reports for kind in report.kinds)
    assert fired.keys() == set(Faults.__struct_fields__)
    assert min(fired.values()) >= len(reports) / 20, fired
    seen = Counter(sight for report in reports for sight in report.seen)
    assert seen.keys() == set(SIGHTS)
    assert min(seen.values()) >= len(reports) / 20, seen
