"""What every ``Clock`` does, whatever it is made of. What it waits is a few milliseconds; nothing here says "at most so long"."""

from __future__ import annotations

import pytest

from ductor_stream.clock import StoreClock
from ductor_stream.ports import Clock
from ductor_stream.testing.simulation.world import Limits, VirtualClock, World

T = 1_900_000_000_000


@pytest.fixture(params=["memory", "machine"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return StoreClock() if request.param == "machine" else VirtualClock(World(0, Limits()))


def test_before_the_first_sample_nothing_is_due(clock: Clock) -> None:
    clock.sleep(0.002)
    assert clock.now() == 0
    assert clock.monotonic() > 0


def test_it_goes_on_by_itself_from_the_last_sample(clock: Clock) -> None:
    clock.observe(T)
    clock.sleep(0.02)
    assert clock.now() >= T + 20
    clock.observe(T + 1_000_000)
    assert clock.now() >= T + 1_000_000


def test_it_is_never_ahead_of_the_store(clock: Clock) -> None:
    """Else a timer would be early: no more has passed since the sample than since before it was taken."""
    for _ in range(20):
        before = clock.monotonic()
        clock.observe(T)
        clock.sleep(0.001)
        now = clock.now()
        assert now - T <= (clock.monotonic() - before) * 1_000 + 1e-6


def test_it_follows_the_store_back(clock: Clock) -> None:
    clock.observe(T)
    clock.observe(T - 3_600_000)
    assert clock.now() < T


def test_the_monotonic_one_knows_no_store(clock: Clock) -> None:
    seen = []
    for sample in (T, T - 3_600_000, T + 3_600_000):
        clock.observe(sample)
        clock.sleep(0.001)
        seen.append(clock.monotonic())
    assert seen == sorted(seen)
    assert len(set(seen)) == 3
