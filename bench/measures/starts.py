"""(g) Run starts: how many are accepted per second, which is to say durable in Postgres."""

from __future__ import annotations

import time

from bench.fleet import MODES, Mode, over_kafka, sync
from bench.history import last_start_s, now_s, started_runs
from bench.plan import Bench
from bench.scenario import Scenario, opened

_WARM_RUNS = 500
_WITHIN_S = 300.0


def starts(bench: Bench) -> None:
    """From the first request until the last start is committed; the runs then wait for a signal."""
    for mode in MODES:
        with opened(bench.servers, sync() if mode == "sync" else over_kafka()) as scenario:
            _start(scenario, "warm-", _WARM_RUNS)
            for repeat in range(bench.repeats):
                _once(bench, scenario, mode, f"start-{repeat}-")
    bench.results.choose_worst("starts_per_s", [f"starts_{mode}_per_s" for mode in MODES], better="higher")


def _once(bench: Bench, scenario: Scenario, mode: Mode, prefix: str) -> None:
    wanted = bench.sizes.starts
    meter = scenario.meter()
    meter.start()
    took_s = _start(scenario, prefix, wanted)
    usage = meter.stop()
    rate = wanted / took_s
    by_role = {role: seconds / wanted * 1e3 for role, seconds in usage.cpu_s.items()}
    bench.results.add(f"starts_{mode}_per_s", rate)
    bench.results.detail(f"{wanted:,} starts", scenario.shape.label, usage, starts_per_s=rate, cpu_ms_per_start=by_role)
    bench.say(f"{wanted:,} starts, {scenario.shape.label}: {rate:,.0f} per second, {sum(by_role.values()):.3f} ms each")


def _start(scenario: Scenario, prefix: str, wanted: int) -> float:
    """Seconds by Postgres's clock until all were accepted."""
    database, load = scenario.ground.database, scenario.load
    began = now_s(database)
    for number in range(wanted):
        load.leave("idle", None, f"{prefix}{number}")
    load.flush()
    deadline = time.monotonic() + _WITHIN_S
    while (started := started_runs(database, prefix)) < wanted:
        assert time.monotonic() < deadline, f"{started:,} of {wanted:,} runs have started"
        load.ended(0.2)
    return last_start_s(database, prefix) - began
