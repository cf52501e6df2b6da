"""(h) Payloads of 1, 10 and 100 KB: chains of ten steps, each of which takes and returns the whole text."""

from __future__ import annotations

import secrets

from bench.fleet import MODES, Mode, over_kafka, sync
from bench.history import check_chains
from bench.load import ClosedLoop
from bench.measures.chains import STEPS
from bench.plan import Bench
from bench.results import quantile
from bench.scenario import Scenario, opened

_LEAST_IN_FLIGHT = 20


def payloads(bench: Bench) -> None:
    """At saturation. The larger the payload, the fewer runs are in flight: about the same number of bytes."""
    for mode in MODES:
        for kb in bench.sizes.payload_kb:
            with opened(bench.servers, sync() if mode == "sync" else over_kafka()) as scenario:
                _carry(bench, scenario, mode, kb)


def random_text(kb: int) -> str:
    """Random, or Postgres would compress it to nothing."""
    return secrets.token_urlsafe(kb * 1024)[: kb * 1024]


def in_flight_of(in_flight: int, kb: int) -> int:
    """So many runs that about as many bytes are in flight as of others with ``in_flight`` times 1 KB."""
    return max(_LEAST_IN_FLIGHT, in_flight // kb)


def _carry(bench: Bench, scenario: Scenario, mode: Mode, kb: int) -> None:
    text, in_flight = random_text(kb), in_flight_of(bench.sizes.in_flight, kb)
    loop = ClosedLoop(scenario.load, lambda: scenario.load.start("carry", text), in_flight)
    loop.run_for(bench.sizes.chain_warm_s)
    for _ in range(bench.repeats):
        meter = scenario.meter()
        meter.start()
        ended = loop.run_for(bench.sizes.payload_s)
        usage = meter.stop()
        steps = STEPS * len(ended)
        rate, by_role = steps / usage.seconds, usage.per_step_ms(steps)
        key = f"payload_{mode}_{kb}kb"
        bench.results.add(f"{key}_steps_per_s", rate)
        bench.results.add(f"{key}_cpu_ms_per_step", by_role.get("all", float("nan")))
        found = {"steps_per_s": rate, "mb_per_s": rate * kb / 1e3, "p50_ms": quantile(ended, 0.5) * 1e3}
        bench.results.detail(f"payloads of {kb} KB", scenario.shape.label, usage, **found, cpu_ms_per_step=by_role)
        bench.say(f"{kb} KB, {scenario.shape.label}: {rate:,.0f} steps/s, {found['mb_per_s']:.1f} MB/s, "
                  f"{by_role.get('all', 0):.3f} ms per step")  # fmt: skip
    scenario.load.drain()
    check_chains(scenario.ground.database, STEPS, "carry")
