"""A short chaos: three brokers, a promotion, kills, a zombie, a cut network; the checks over its history are content."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from chaos.run import reign
from chaos.world import Shape

SECONDS = 25.0
FAULTS = ("kill-coordinator", "kill-worker", "freeze", "network", "broker-kill", "failover")
"""Those that matter most. ``make chaos`` has all of them."""


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_counts_twice(tmp_path: Path) -> None:
    """R1–R12: whatever happens to brokers, Postgres and processes."""
    seed = secrets.randbelow(1 << 32)
    lines: list[str] = []
    outcome = reign(Shape(coordinators=1, serves=1, workers=1, rate=4.0), SECONDS, FAULTS, seed, tmp_path, lines.append)
    told = "\n".join([f"python -m chaos --seed {seed} --faults {','.join(FAULTS)}", *lines])
    assert outcome.problems == [], told
    assert {check.claim: check.faults[:3] for check in outcome.checks if not check.holds} == {}, told
    assert outcome.faults >= 3, told
    assert len(outcome.history.runs) > 20, told
