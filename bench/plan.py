"""How much of everything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Results
from bench.servers import Servers


@dataclass(frozen=True)
class Sizes:
    """Of the workloads. Times in seconds."""

    broker_warm_s: float = 30.0
    chain_warm_s: float = 4.0
    chain_s: float = 10.0
    in_flight: int = 2_000
    coordinators: tuple[int, ...] = (1, 2, 4)
    tuned_partitions: tuple[int, ...] = (1, 2)
    paced: tuple[int, ...] = (1_000, 4_000)
    serial_runs: int = 200
    serial_warm_runs: int = 30
    fanouts: tuple[int, ...] = (1_000, 10_000)
    fanout_workers: tuple[int, ...] = (1, 4)
    sleepers: tuple[int, ...] = (1_000, 50_000)
    sleeper_starts_per_s: float = 1_500.0
    long_steps: int = 50_000
    longest_steps: int = 100_000
    edge_steps: int = 500
    idle_runs: int = 100_000
    starts: int = 30_000
    payload_kb: tuple[int, ...] = (1, 10, 100)
    payload_s: float = 10.0
    floor_s: float = 5.0


QUICK = Sizes(
    broker_warm_s=3.0,
    chain_warm_s=1.0,
    chain_s=3.0,
    in_flight=200,
    coordinators=(1, 2),
    tuned_partitions=(1,),
    paced=(1_000,),
    serial_runs=30,
    serial_warm_runs=5,
    fanouts=(100, 1_000),
    fanout_workers=(1, 2),
    sleepers=(200, 1_000),
    sleeper_starts_per_s=200.0,
    long_steps=2_000,
    longest_steps=3_000,
    edge_steps=200,
    idle_runs=3_000,
    starts=2_000,
    payload_kb=(1, 10),
    payload_s=2.0,
    floor_s=1.0,
)
"""For building the harness: the figures mean nothing."""


@dataclass(frozen=True)
class Bench:
    """What every measure is given. ``say`` tells people how far it is."""

    servers: Servers
    sizes: Sizes
    repeats: int
    results: Results
    say: Callable[[str], None]
