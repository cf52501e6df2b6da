"""A short chaos: three brokers, a promotion, kills, a zombie, a cut network; the checks over its history are content."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from chaos.run import reign, repeating
from chaos.world import Shape

SECONDS = 25.0
FAULTS = ("kill-coordinator", "kill-worker", "freeze", "network", "broker-kill", "failover")
"""Those that matter most. ``make chaos`` has all of them."""


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_counts_twice(tmp_path: Path) -> None:
    """R1, R3–R9, R11, R12 (no fault here deletes input: R5b is not among them): whatever happens to brokers, Postgres and processes."""
    seed = secrets.randbelow(1 << 32)
    shape = Shape(coordinators=1, serves=1, workers=1, rate=4.0)
    print(repeating(shape, SECONDS, FAULTS, seed))
    outcome = reign(shape, SECONDS, FAULTS, seed, tmp_path, print)
    assert outcome.problems == []
    assert {check.claim: check.faults[:3] for check in outcome.checks if not check.holds} == {}
    assert outcome.faults >= 1
    assert len(outcome.history.runs) > 20
