"""The command line: start the servers, warm them up, run the measures, report."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from bench import report
from bench.measures import chains, fanout, floors, idle, long_run, payloads, serial, starts, timers
from bench.plan import QUICK, Bench, Sizes
from bench.results import Results
from bench.servers import running

MEASURES: dict[str, Callable[[Bench], None]] = {
    "floors": floors.floors,
    "a": chains.saturated,
    "paced": chains.paced,
    "b": serial.serial,
    "c": fanout.fanout,
    "d": timers.timers,
    "e": long_run.long_run,
    "f": idle.idle,
    "g": starts.starts,
    "h": payloads.payloads,
}
"""In the order in which they run; names for ``--only``."""

REPEATS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m bench``: measure, print the table, write ``bench/out/latest.json`` and the plot."""
    options = _parser().parse_args(arguments)
    chosen = _chosen(options.only)
    results = Results()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    sizes = QUICK if options.quick else Sizes()
    with running() as servers:
        bench = Bench(servers, sizes, 1 if options.quick else options.repeat, results, say)
        say(f"warming the broker up for {sizes.broker_warm_s:g} s")
        servers.warm_broker(sizes.broker_warm_s)
        for name in chosen:
            say(f"-- {name}: {(MEASURES[name].__doc__ or '').splitlines()[0]}")
            MEASURES[name](bench)
    report.publish(results, quick=options.quick)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"measures with commas between them, of {','.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="small and once: for trying the harness out")
    parser.add_argument("--repeat", type=int, default=REPEATS, help="repeats of each measure (default: %(default)s)")
    return parser


def _chosen(only: str) -> list[str]:
    names = [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in MEASURES]:
        raise SystemExit(f"no measure is called {unknown[0]}; there are {', '.join(MEASURES)}")
    return [name for name in MEASURES if not names or name in names]
