"""Which peers there are, how each is set, and which figures are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

WORKLOADS = {"a": "chains", "b": "serial", "c": "fanout", "d": "timers", "e": "long"}
"""Measure of bench/README.md -> workload."""


@dataclass(frozen=True)
class Participant:
    """One system in one setting, with each workload's options; what it has no options for is not measured."""

    product: str
    workloads: Mapping[str, tuple[str, ...]]
    mode: str = ""

    def arguments(self, workload: str) -> list[str]:
        """For the harness."""
        return [*self.workloads[workload], *([f"mode={self.mode}"] if self.mode else [])]


_CHAINS_OF_OURS = ("workers=2", "inflight=2000", "warmup=5000")
_OURS = {
    "chains": _CHAINS_OF_OURS,
    "serial": ("inflight=1",),
    "fanout": ("inflight=32",),
    "timers": ("inflight=1000",),
    "long": ("inflight=1",),
}

OURS: Mapping[str, Participant] = {
    "ductor, SyncMatch": Participant("ductor", _OURS, "sync"),
    "ductor, over Kafka": Participant("ductor", _OURS, "kafka"),
}

# Chains with the concurrency that gave each peer the most steps/s on two cores; of those that are slow there, some
# workloads are smaller, so that a measurement stays below four minutes.
PEERS: Mapping[str, Participant] = {
    "DBOS": Participant(
        "dbos",
        {
            "chains": ("drivers=2", "inflight=2"),
            "serial": ("inflight=1",),
            "fanout": ("inflight=2",),
            "timers": ("drivers=2",),
            "long": ("inflight=2",),
        },
    ),
    "Restate": Participant(
        "restate",
        {"chains": ("workers=2", "inflight=256"), "serial": ("inflight=1",), "fanout": (), "timers": (), "long": ()},
    ),
    "Restate, 1 partition": Participant(
        "restate", {"chains": ("inflight=128",), "serial": ("inflight=1",)}, "default-num-partitions=1"
    ),
    "Temporal": Participant(
        "temporal",
        {
            "chains": ("warmup=30",),
            "serial": ("inflight=1", "serial=60", "warmup=20"),
            "fanout": ("inflight=8", "warmup=20"),
            "timers": ("warmup=30",),
            "long": ("inflight=1", "long=2000", "warmup=20"),
        },
    ),
    "Temporal, local activities": Participant(
        "temporal",
        {
            "chains": ("inflight=64", "warmup=50"),
            "serial": ("inflight=1", "serial=100", "warmup=50"),
            "fanout": ("inflight=8", "warmup=50"),
        },
        "local",
    ),
    "LittleHorse": Participant(
        "littlehorse",
        {
            "chains": ("inflight=64", "warmup=1000"),
            "serial": ("inflight=1", "serial=60", "warmup=40"),
            "fanout": ("inflight=16", "warmup=60", "fanout=300"),
            "timers": ("warmup=60",),
            "long": ("inflight=16", "warmup=60", "long=1000"),
        },
    ),
}

QUICK = (
    "seconds=2",
    "warmup=4",
    "broker_warm=2",
    "serial=5",
    "fanout=20",
    "timers=20",
    "sleep=3",
    "long=40",
)
"""For trying the harness out: these win over all other options, and the figures mean nothing."""


@dataclass(frozen=True)
class Figure:
    """What is compared."""

    workload: str
    key: str
    title: str
    better: Literal["higher", "lower"]
    times: Mapping[str, float] = field(default_factory=dict)
    """How many times the tuned Restate is aimed at, by participant of ours."""

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        return ours / theirs if self.better == "higher" else theirs / ours


FIGURES = (
    Figure("chains", "steps_per_s", "chains at saturation, steps/s", "higher",
           {"ductor, SyncMatch": 4.0, "ductor, over Kafka": 2.5}),
    Figure("chains", "cpu_ms_per_step", "CPU per step, all processes", "lower"),
    Figure("serial", "p50_ms", "ten steps, one run at a time, p50", "lower"),
    Figure("serial", "p99_ms", "ten steps, one run at a time, p99", "lower"),
    Figure("fanout", "steps_per_s", "fan-out then join, steps/s", "higher"),
    Figure("timers", "p50_ms", "timers of a burst, lateness p50", "lower"),
    Figure("timers", "p99_ms", "timers of a burst, lateness p99", "lower"),
    Figure("long", "ms_per_step", "one long run, ms per step", "lower"),
    Figure("long", "last_over_first", "its last 500 steps against its first", "lower"),
)  # fmt: skip
TUNED = "Restate, 1 partition"
