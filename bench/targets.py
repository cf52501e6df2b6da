"""What is aimed at, by key of ``latest.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A figure with its aim. ``better`` says whether at least or at most ``aim`` is wanted."""

    key: str
    title: str
    unit: str
    aim: float
    better: Literal["higher", "lower"]

    def met(self, value: float) -> bool:
        """Whether the aim is reached."""
        return value >= self.aim if self.better == "higher" else value <= self.aim


def _higher(key: str, title: str, unit: str, aim: float) -> Target:
    return Target(key, title, unit, aim, "higher")


def _lower(key: str, title: str, unit: str, aim: float) -> Target:
    return Target(key, title, unit, aim, "lower")


TARGETS: tuple[Target, ...] = (
    _higher("chain_sync_steps_per_s", "chains at saturation, SyncMatch", "steps/s", 20_000),
    _higher("chain_kafka_steps_per_s", "chains at saturation, over Kafka", "steps/s", 12_000),
    _lower("chain_sync_cpu_ms_per_step", "CPU per step, all processes, SyncMatch", "ms", 0.09),
    _lower("chain_kafka_cpu_ms_per_step", "CPU per step, all processes, over Kafka", "ms", 0.15),
    _lower("paced_sync_cpu_ms_per_step", "CPU per step at 4,000 steps/s, SyncMatch", "ms", 0.30),
    _lower("paced_kafka_cpu_ms_per_step", "CPU per step at 4,000 steps/s, over Kafka", "ms", 0.45),
    _lower("serial_sync_p50_ms", "ten steps, one run at a time, SyncMatch, p50", "ms", 8),
    _lower("serial_sync_p99_ms", "ten steps, one run at a time, SyncMatch, p99", "ms", 15),
    _lower("serial_kafka_p50_ms", "ten steps, one run at a time, over Kafka, p50", "ms", 25),
    _lower("serial_kafka_p99_ms", "ten steps, one run at a time, over Kafka, p99", "ms", 50),
    _higher("fanout_sync_steps_per_s", "fan-out of 1,000 then join, SyncMatch", "steps/s", 8_000),
    _higher("fanout_kafka_steps_per_s", "fan-out of 1,000 then join, over Kafka", "steps/s", 6_000),
    _higher("fanout_flat", "fan-out of 10,000 against 1,000, worse mode", "ratio", 0.9),
    _lower("timer_p50_ms", "1,000 timers due at once, lateness p50, worse mode", "ms", 50),
    _lower("timer_p99_ms", "1,000 timers due at once, lateness p99, worse mode", "ms", 100),
    _lower("long_run_sync_ms_per_step", "one run of 50,000 steps, SyncMatch", "ms", 0.8),
    _lower("long_run_kafka_ms_per_step", "one run of 50,000 steps, over Kafka", "ms", 2.5),
    _lower("long_run_last_over_first", "its last 500 steps against its first, worse mode", "ratio", 1.05),
    _higher("idle_runs_ratio", "steps/s with 100,000 idle open runs / without, worse mode", "ratio", 0.95),
    _lower("idle_run_bytes", "memory per idle run in a coordinator, worse mode", "bytes", 1_024),
    _lower("takeover_ms", "take-over of a partition with 100,000 open runs, worse mode", "ms", 2_000),
)
