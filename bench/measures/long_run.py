"""(e) One run of many steps: ms per step, and whether the last ones cost more than the first."""

from __future__ import annotations

from bench.fleet import MODES, Mode, over_kafka, sync
from bench.history import commit_times_s
from bench.measures.chains import STEPS
from bench.plan import Bench
from bench.scenario import Scenario, opened

_WITHIN_S = 1_800.0
_WARM_RUNS = 20


def long_run(bench: Bench) -> None:
    """Between commits, by Postgres's clock. ``long_run_last_over_first`` is of the worse mode."""
    for mode in MODES:
        with opened(bench.servers, sync() if mode == "sync" else over_kafka()) as scenario:
            for _ in range(_WARM_RUNS):
                scenario.load.start("chain", STEPS)
                scenario.load.drain()
            for _ in range(bench.repeats):
                _once(bench, scenario, mode)
    ratios = [f"long_run_{mode}_last_over_first" for mode in MODES]
    bench.results.choose_worst("long_run_last_over_first", ratios, better="lower")


def _once(bench: Bench, scenario: Scenario, mode: Mode) -> None:
    steps, edge = bench.sizes.long_steps, bench.sizes.edge_steps
    meter = scenario.meter()
    meter.start()
    run_id = scenario.load.start("chain", steps)
    scenario.load.drain(_WITHIN_S)
    usage = meter.stop()
    at = commit_times_s(scenario.ground.database, run_id)
    assert len(at) == steps + 1, f"{len(at)} commits of {steps} steps and a start"
    per_step = (at[-1] - at[0]) / steps * 1e3
    first, last = (at[edge] - at[0]) / edge * 1e3, (at[-1] - at[-1 - edge]) / edge * 1e3
    bench.results.add(f"long_run_{mode}_ms_per_step", per_step)
    bench.results.add(f"long_run_{mode}_last_over_first", last / first)
    found = {"ms_per_step": per_step, "first_ms": first, "last_ms": last, "cpu_ms_per_step": usage.per_step_ms(steps)}
    bench.results.detail(f"one run of {steps:,} steps", scenario.shape.label, usage, **found)
    bench.say(
        f"{steps:,} steps, {scenario.shape.label}: {per_step:.2f} ms per step, first {first:.2f}, last {last:.2f}"
    )
