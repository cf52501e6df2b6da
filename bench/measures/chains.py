"""(a) Chains of ten no-op steps: at saturation, with one to four coordinator processes, and at a paced rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.accounting import Usage
from bench.fleet import MODES, Mode, Shape, over_kafka, sync
from bench.history import check_chains
from bench.load import ClosedLoop, Paced
from bench.plan import Bench
from bench.results import quantile
from bench.scenario import Scenario, opened

STEPS = 10


def saturated(bench: Bench) -> None:
    """As many steps as go through, in each mode with each number of coordinators; the best is the mode's figure.

    With the shipped number of partitions, then with fewer (keys ``…_tuned_…``).
    """
    for mode in MODES:
        candidates = [
            _saturate(bench, f"chain_{mode}_{count}", _shape(mode, count)) for count in bench.sizes.coordinators
        ]
        best = bench.results.choose_best(f"chain_{mode}", candidates, ("cpu_ms_per_step", "p50_ms", "p99_ms"))
        bench.say(f"best of {mode}: {best}")
        tuned = [
            _saturate(bench, f"chain_{mode}_tuned_{count}", _shape(mode, 1, count))
            for count in bench.sizes.tuned_partitions
        ]
        bench.results.choose_best(f"chain_{mode}_tuned", tuned, ("cpu_ms_per_step",))


def paced(bench: Bench) -> None:
    """CPU and latency at a rate that leaves the machine air. ``paced_<mode>_…`` is the highest of the rates."""
    for mode in MODES:
        with opened(bench.servers, _shape(mode, 1)) as scenario:
            for rate in bench.sizes.paced:
                for _ in range(bench.repeats):
                    _pace(bench, scenario, mode, rate)
            check_chains(scenario.ground.database, STEPS)


def _shape(mode: Mode, coordinators: int, partitions: int | None = None) -> Shape:
    """One worker serves two coordinators: an empty step costs it less than half of what it costs them."""
    if mode == "sync":
        return sync(coordinators, partitions=partitions)
    return over_kafka(coordinators, max(1, coordinators // 2), partitions=partitions)


@dataclass(frozen=True)
class _Window:
    """What was seen between two readings of the meter."""

    usage: Usage
    latencies: Sequence[float]

    @property
    def steps(self) -> int:
        return STEPS * len(self.latencies)

    def record(self, bench: Bench, key: str, shape: Shape, measure: str) -> None:
        results, usage = bench.results, self.usage
        p50, p99 = (quantile(self.latencies, share) * 1e3 for share in (0.5, 0.99))
        rate, by_role = self.steps / usage.seconds, usage.per_step_ms(self.steps)
        results.add(f"{key}_steps_per_s", rate)
        results.add(f"{key}_cpu_ms_per_step", by_role.get("all", float("nan")))
        results.add(f"{key}_p50_ms", p50)
        results.add(f"{key}_p99_ms", p99)
        steps_per_commit = self.steps / usage.commits if usage.commits else 0.0
        found = {"steps_per_s": rate, "p50_ms": p50, "p99_ms": p99, "steps_per_commit": steps_per_commit}
        results.detail(measure, shape.label, usage, **found, cpu_ms_per_step=by_role)
        parts = " + ".join(f"{role} {ms:.3f}" for role, ms in by_role.items() if role != "all")
        bench.say(f"{measure}, {shape.label}: {rate:,.0f} steps/s, {by_role.get('all', 0):.3f} ms per step ({parts}), "
                  f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {steps_per_commit:.0f} steps per commit")  # fmt: skip


def _saturate(bench: Bench, key: str, shape: Shape) -> str:
    with opened(bench.servers, shape) as scenario:
        loop = ClosedLoop(scenario.load, lambda: scenario.load.start("chain", STEPS), bench.sizes.in_flight)
        loop.run_for(bench.sizes.chain_warm_s)
        for _ in range(bench.repeats):
            meter = scenario.meter()
            meter.start()
            latencies = loop.run_for(bench.sizes.chain_s)
            _Window(meter.stop(), latencies).record(bench, key, shape, "chains")
        scenario.load.drain()
        check_chains(scenario.ground.database, STEPS)
    return key


def _pace(bench: Bench, scenario: Scenario, mode: Mode, rate: int) -> None:
    loop = Paced(scenario.load, lambda: scenario.load.start("chain", STEPS), rate / STEPS)
    loop.run_for(bench.sizes.chain_warm_s)
    meter = scenario.meter()
    meter.start()
    latencies = loop.run_for(bench.sizes.chain_s)
    window = _Window(meter.stop(), latencies)
    scenario.load.drain()
    window.record(bench, f"paced_{mode}_{rate}", scenario.shape, f"paced {rate:,} steps/s")
    if rate == max(bench.sizes.paced):
        bench.results.add(
            f"paced_{mode}_cpu_ms_per_step", window.usage.per_step_ms(window.steps).get("all", float("nan"))
        )
