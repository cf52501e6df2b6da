"""(d) Sleeping runs that are all due at one moment: how late each one's end is durable, by Postgres's clock."""

from __future__ import annotations

import time

from bench.fleet import MODES, over_kafka, sync
from bench.history import lateness_s, now_s, started_runs
from bench.plan import Bench
from bench.results import quantile
from bench.scenario import Scenario, opened

_HEAD_START_S = 3.0
_COORDINATORS = (1, 2)


def timers(bench: Bench) -> None:
    """Lateness p50 and p99 of few and of many timers; ``timer_p50_ms`` and ``_p99_ms`` are of the few, worse mode.

    With one coordinator process and with two; a mode's figure is of those that had the lower p50.
    """
    for mode in MODES:
        for count in bench.sizes.sleepers:
            candidates = [f"timer_{mode}_{count}_by_{number}" for number in _COORDINATORS]
            for number, key in zip(_COORDINATORS, candidates, strict=True):
                with opened(bench.servers, sync(number) if mode == "sync" else over_kafka(number)) as scenario:
                    for repeat in range(bench.repeats):
                        _due_together(bench, scenario, key, count, repeat)
            bench.results.choose_best(f"timer_{mode}_{count}", candidates, ("p99_ms",), by="p50_ms")
    few = min(bench.sizes.sleepers)
    for ending in ("p50_ms", "p99_ms"):
        bench.results.choose_worst(
            f"timer_{ending}", [f"timer_{mode}_{few}_{ending}" for mode in MODES], better="lower"
        )


def _due_together(bench: Bench, scenario: Scenario, key: str, count: int, repeat: int) -> None:
    database, prefix = scenario.ground.database, f"sleeper-{repeat}-"
    # Long enough that all are asleep by then.
    lead_s = _HEAD_START_S + count / bench.sizes.sleeper_starts_per_s
    due_at = now_s(database) + lead_s
    until = time.monotonic() + lead_s
    for number in range(count):
        scenario.load.start("sleeper", due_at, f"{prefix}{number}")
        if number % 100 == 0:
            scenario.load.ended(0)
    scenario.load.flush()
    while started_runs(database, prefix) < count:
        if time.monotonic() > until - 0.5:
            bench.results.warnings.append(
                f"timers, {scenario.shape.label}: not all {count:,} slept before they were due"
            )
            break
        scenario.load.ended(0.2)
    meter = scenario.meter()
    meter.start()
    scenario.load.drain()
    usage = meter.stop()
    late = lateness_s(database, prefix, due_at)
    assert len(late) == count, f"{len(late)} of {count} sleepers have ended"
    p50, p99 = quantile(late, 0.5) * 1e3, quantile(late, 0.99) * 1e3
    first, last = min(late) * 1e3, max(late) * 1e3
    bench.results.add(f"{key}_p50_ms", p50)
    bench.results.add(f"{key}_p99_ms", p99)
    found = {"p50_ms": p50, "p99_ms": p99, "first_ms": first, "last_ms": last}
    bench.results.detail(f"{count:,} timers", scenario.shape.label, usage, **found)
    bench.say(
        f"{count:,} timers, {scenario.shape.label}: late p50 {p50:.0f} ms, p99 {p99:.0f} ms, {first:.0f} to {last:.0f}"
    )
