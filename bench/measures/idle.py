"""(f) Very many open idle runs: what each costs in memory, what they cost the others, and how soon they are taken over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from bench.accounting import resident_kb
from bench.fleet import MODES, Member, Mode, over_kafka, sync
from bench.history import check_chains, started_runs
from bench.load import ClosedLoop
from bench.measures.chains import STEPS
from bench.plan import Bench
from bench.scenario import Ground, Scenario, opened
from ductor_stream.engine.ids import partition_of

_STARTED_WITHIN_S = 600.0
_STAMPED_WITHIN_S = 120.0
"""A killed owner's partitions are given away when its session has timed out: that is not what is measured."""
_LOOK_EVERY_S = 0.05


def idle(bench: Bench) -> None:
    """All idle runs live in one partition. Keys without a mode are the worse of both."""
    for mode in MODES:
        with opened(bench.servers, sync() if mode == "sync" else over_kafka()) as scenario:
            alone = _windows(bench, scenario, "without idle runs")
            _fill(bench, scenario, mode)
            among = _windows(bench, scenario, "among idle runs")
            for before, after in zip(alone, among, strict=True):
                bench.results.add(f"idle_{mode}_steps_per_s", after)
                bench.results.add(f"idle_{mode}_runs_ratio", after / before if before else float("nan"))
            for _ in range(bench.repeats):
                _take_over(bench, scenario, mode)
            check_chains(scenario.ground.database, STEPS)
    _choose(bench)


def _choose(bench: Bench) -> None:
    results = bench.results
    results.choose_worst("idle_runs_ratio", [f"idle_{mode}_runs_ratio" for mode in MODES], better="higher")
    results.choose_worst("idle_run_bytes", [f"idle_{mode}_run_bytes" for mode in MODES], better="lower")
    results.choose_worst("takeover_ms", [f"takeover_{mode}_ms" for mode in MODES], better="lower")


def _windows(bench: Bench, scenario: Scenario, when: str) -> list[float]:
    """Steps/s of chains at saturation, once per repeat; all of them have ended when this returns."""
    loop = ClosedLoop(scenario.load, lambda: scenario.load.start("chain", STEPS), bench.sizes.in_flight)
    loop.run_for(bench.sizes.chain_warm_s)
    rates = []
    for _ in range(bench.repeats):
        meter = scenario.meter()
        meter.start()
        ended = loop.run_for(bench.sizes.chain_s)
        usage = meter.stop()
        rates.append(STEPS * len(ended) / usage.seconds)
        bench.results.detail(f"chains {when}", scenario.shape.label, usage, steps_per_s=rates[-1])
        bench.say(f"chains {when}, {scenario.shape.label}: {rates[-1]:,.0f} steps/s")
    scenario.load.drain()
    return rates


def idle_ids(ground: Ground) -> Iterator[str]:
    """Ids of runs that all live in partition 0."""
    for number in count():
        run_id = f"idle-{number}"
        if partition_of(run_id.encode(), ground.partitions) == 0:
            yield run_id


def _fill(bench: Bench, scenario: Scenario, mode: Mode) -> None:
    """Start the idle runs, and see what the one owner's memory has grown by."""
    wanted, database = bench.sizes.idle_runs, scenario.ground.database
    (owner,) = scenario.fleet.owners()
    before_kb = resident_kb(owner.process.pid)
    for number, run_id in zip(range(wanted), idle_ids(scenario.ground), strict=False):
        scenario.load.leave("idle", None, run_id)
        if number % 1_000 == 0:
            scenario.load.ended(0)
    scenario.load.flush()
    deadline = time.monotonic() + _STARTED_WITHIN_S
    while (started := started_runs(database, "idle-")) < wanted:
        assert time.monotonic() < deadline, f"{started:,} of {wanted:,} idle runs have started"
        scenario.load.ended(1.0)
    grown = (resident_kb(owner.process.pid) - before_kb) * 1024
    cached = scenario.fleet.total("ductor_runs_cached")
    bench.results.add(f"idle_{mode}_run_bytes", grown / wanted)
    found = {"bytes_per_run": grown / wanted, "owner_grew_mb": grown / 1e6, "runs_cached": cached}
    bench.results.detail(f"{wanted:,} idle runs", scenario.shape.label, None, **found)
    bench.say(f"{wanted:,} idle runs, {scenario.shape.label}: {grown / wanted:,.0f} bytes each, {cached:,.0f} cached")


def _take_over(bench: Bench, scenario: Scenario, mode: Mode) -> None:
    """Kill the owner under load, start another, and see how long it takes from its assignment to its first commit."""
    fleet, load = scenario.fleet, scenario.load
    for _ in range(bench.sizes.in_flight):
        load.start("chain", STEPS)
    load.ended(0.5)  # some are under way by then, so that there is something to redrive
    (owner,) = fleet.owners()
    fleet.kill(owner)
    load.start("chain", STEPS)
    out = fleet.folder / f"stamps-{len(list(fleet.folder.glob('stamps-*')))}"
    heir = fleet.start(owner.role, scenario.shape.concurrency, "bench.stamped", {"BENCH_STAMPS": str(out)})
    took_ms = _stamped_ms(heir, out)
    fleet.await_ready(scenario.ground.partitions)
    load.drain()
    memory_mb = resident_kb(heir.process.pid) * 1024 / 1e6
    bench.results.add(f"takeover_{mode}_ms", took_ms)
    bench.results.detail("take-over", scenario.shape.label, takeover_ms=took_ms, heir_mb=memory_mb)
    bench.say(f"take-over, {scenario.shape.label}: {took_ms:,.0f} ms from assignment to the first commit")


def _stamped_ms(heir: Member, out: Path) -> float:
    deadline = time.monotonic() + _STAMPED_WITHIN_S
    while not out.exists():
        assert heir.process.alive() and time.monotonic() < deadline, f"the heir has not committed; see {heir.log}"
        time.sleep(_LOOK_EVERY_S)
    stamps: dict[str, float] = json.loads(out.read_text())
    return (stamps["committed"] - stamps["assigned"]) * 1e3
