"""(e) One run of many steps: ms per step, and whether the last ones cost more than the first."""

from __future__ import annotations

import statistics
from itertools import pairwise

from bench.fleet import MODES, over_kafka, sync
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
                _once(bench, scenario, f"long_run_{mode}", bench.sizes.long_steps)
            _once(bench, scenario, f"longest_run_{mode}", bench.sizes.longest_steps)
    ratios = [f"long_run_{mode}_last_over_first" for mode in MODES]
    bench.results.choose_worst("long_run_last_over_first", ratios, better="lower")


def _once(bench: Bench, scenario: Scenario, key: str, steps: int) -> None:
    edge = bench.sizes.edge_steps
    meter = scenario.meter()
    meter.start()
    run_id = scenario.load.start("chain", steps)
    scenario.load.drain(_WITHIN_S)
    usage = meter.stop()
    at = commit_times_s(scenario.ground.database, run_id)
    assert len(at) == steps + 1, f"{len(at)} commits of {steps} steps and a start"
    per_step = (at[-1] - at[0]) / steps * 1e3
    first, last = (at[edge] - at[0]) / edge * 1e3, (at[-1] - at[-1 - edge]) / edge * 1e3
    bench.results.add(f"{key}_ms_per_step", per_step)
    bench.results.add(f"{key}_last_over_first", last / first)
    places = [*(10**power for power in range(1, len(str(steps - 1)))), steps]
    on_the_way = {f"median_ms_at_{place:,}": _median_ms(at, place, edge) for place in places}
    found = {"ms_per_step": per_step, "first_ms": first, "last_ms": last, "cpu_ms_per_step": usage.per_step_ms(steps)}
    bench.results.detail(f"one run of {steps:,} steps", scenario.shape.label, usage, **found, **on_the_way)
    medians = ", ".join(f"{name.removeprefix('median_ms_')} {ms:.2f}" for name, ms in on_the_way.items())
    bench.say(
        f"{steps:,} steps, {scenario.shape.label}: {per_step:.2f} ms per step, first {first:.2f}, last {last:.2f}; "
        f"medians {medians}"
    )


def _median_ms(at: list[float], place: int, edge: int) -> float:
    """Of the steps on both sides of that place: one that waited for a checkpoint says nothing about the length."""
    edge = min(edge, place)
    from_ = max(0, min(place - edge // 2, len(at) - 1 - edge))
    window = at[from_ : from_ + edge + 1]
    return statistics.median(after - before for before, after in pairwise(window)) * 1e3
