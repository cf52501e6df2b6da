"""(b) Chains of ten steps, one run at a time: what a caller waits for."""

from __future__ import annotations

from bench.fleet import MODES, over_kafka, sync
from bench.history import check_chains
from bench.measures.chains import STEPS
from bench.plan import Bench
from bench.results import quantile
from bench.scenario import Scenario, opened


def serial(bench: Bench) -> None:
    """From the request to the end heard on ``run-lifecycle``, p50 and p99."""
    for mode in MODES:
        with opened(bench.servers, sync() if mode == "sync" else over_kafka()) as scenario:
            _one_at_a_time(scenario, bench.sizes.serial_warm_runs)
            for _ in range(bench.repeats):
                meter = scenario.meter()
                meter.start()
                took = _one_at_a_time(scenario, bench.sizes.serial_runs)
                usage = meter.stop()
                p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
                bench.results.add(f"serial_{mode}_p50_ms", p50)
                bench.results.add(f"serial_{mode}_p99_ms", p99)
                by_role = usage.per_step_ms(STEPS * len(took))
                bench.results.detail(
                    "serial", scenario.shape.label, usage, p50_ms=p50, p99_ms=p99, cpu_ms_per_step=by_role
                )
                bench.say(f"serial, {scenario.shape.label}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
            check_chains(scenario.ground.database, STEPS)


def _one_at_a_time(scenario: Scenario, count: int) -> list[float]:
    took: list[float] = []
    for _ in range(count):
        scenario.load.start("chain", STEPS)
        took += scenario.load.drain()
    return took
