"""(c) One run that fans out and joins, with one and with several worker processes."""

from __future__ import annotations

from bench.fleet import MODES, Mode, Shape, over_kafka, sync
from bench.plan import Bench
from bench.scenario import Scenario, opened

_WARM_RUNS = 3


def fanout(bench: Bench) -> None:
    """Steps/s from the request to the end heard. ``fanout_flat``: the largest against the smallest, worse mode."""
    flat = []
    for mode in MODES:
        keys = [_fan_out(bench, mode, workers) for workers in bench.sizes.fanout_workers]
        smallest, largest = min(bench.sizes.fanouts), max(bench.sizes.fanouts)
        best = bench.results.choose_best(f"fanout_{mode}", [f"{key}_{smallest}" for key in keys])
        small, large = (
            bench.results.samples[f"{best.rpartition('_')[0]}_{n}_steps_per_s"] for n in (smallest, largest)
        )
        bench.results.samples[f"fanout_{mode}_flat"] = [b / a for a, b in zip(small, large, strict=True)]
        flat.append(f"fanout_{mode}_flat")
    bench.results.choose_worst("fanout_flat", flat, better="higher")


def _shape(mode: Mode, workers: int) -> Shape:
    """By SyncMatch one worker is in the process that owns the run, the others are beside it."""
    return sync(workers=workers - 1) if mode == "sync" else over_kafka(workers=workers)


def _fan_out(bench: Bench, mode: Mode, workers: int) -> str:
    key = f"fanout_{mode}_{workers}w"
    with opened(bench.servers, _shape(mode, workers)) as scenario:
        for _ in range(_WARM_RUNS):
            scenario.load.start("fanout", min(bench.sizes.fanouts))
            scenario.load.drain()
        for _ in range(bench.repeats):
            for steps in bench.sizes.fanouts:
                _once(bench, scenario, f"{key}_{steps}", steps)
    return key


def _once(bench: Bench, scenario: Scenario, key: str, steps: int) -> None:
    meter = scenario.meter()
    meter.start()
    scenario.load.start("fanout", steps)
    (took,) = scenario.load.drain()
    usage = meter.stop()
    bench.results.add(f"{key}_steps_per_s", steps / took)
    by_role = usage.per_step_ms(steps)
    bench.results.detail(
        f"fan-out of {steps:,}", scenario.shape.label, usage, steps_per_s=steps / took, cpu_ms_per_step=by_role
    )
    bench.say(
        f"fan-out of {steps:,}, {scenario.shape.label}: {steps / took:,.0f} steps/s, {by_role['all']:.3f} ms per step"
    )
