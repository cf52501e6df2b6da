"""``python -m ductor_stream.testing.simulation --seeds A:B``: run seeds, print figures, and what a failing one did."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from ductor_stream.testing.simulation import Limits, Report, simulate
from ductor_stream.testing.simulation.shrinking import Shrunk, shrink

_CHUNK = 10
_SHOWN = 40
"""Lines of a trace's end: what broke the rule is among the last of them."""

_AGAIN = "python -m ductor_stream.testing.simulation"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ductor_stream.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="A:B, the seeds from A up to but without B; or one seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print the trace of each seed")
    parser.add_argument("--without", default="", help="kinds of faults, with commas, that do not happen")
    parser.add_argument("--drop", default="", help="run ids, with commas, that no client starts")
    parser.add_argument("--faults", type=int, default=-1, help="end all faults after so many")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the least that still fails")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first seed that fails")
    return parser.parse_args()


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _report(seed: int, limits: Limits, traces: bool) -> Report:
    report = simulate(seed, limits)
    return report if traces or report.broken else msgspec.structs.replace(report, trace=[])


def _reports(arguments: argparse.Namespace, limits: Limits) -> Iterator[Report]:
    _quiet()
    seeds, jobs = _range(arguments.seeds), arguments.jobs
    run = partial(_report, limits=limits, traces=arguments.trace)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        yield from pool.map(run, seeds, chunksize=_CHUNK)


def _quiet() -> None:
    logging.getLogger("ductor_stream").setLevel(logging.CRITICAL + 1)


def _begin() -> None:
    _quiet()
    # Worlds are many small objects that all go together: looking for garbage among them costs a tenth, and what was
    # imported need not be looked at at all.
    gc.set_threshold(1_000_000, 50, 50)
    gc.freeze()


def _limits(arguments: argparse.Namespace) -> Limits:
    without, dropped = arguments.without.split(","), arguments.drop.split(",")
    return Limits(frozenset(filter(None, without)), frozenset(filter(None, dropped)), arguments.faults)


def _told(report: Report, limits: Limits, shrinks: bool) -> None:
    print(f"seed {report.seed}: {report.broken}")
    print(f"again: {_AGAIN} {Shrunk(limits, report).options} --trace", flush=True)
    if not shrinks:
        return
    least = shrink(report, limits)
    lines, faults = len(least.report.trace), ", ".join(f"{kind} {n}" for kind, n in least.report.kinds.items())
    print(
        f"shrunk from {len(report.trace)} to {lines} lines, with {len(least.report.asked)} runs and {faults or 'no fault'}:"
    )
    print("\n".join(f"  {line}" for line in least.report.trace[-_SHOWN:]))
    print(f"again: {_AGAIN} {least.options} --trace", flush=True)


def _figures(reports: list[Report], seconds: float) -> Iterable[str]:
    yield f"{len(reports)} seeds in {seconds:.1f} s: {len(reports) / seconds * 60:.0f} seeds a minute"
    for name in ("runs", "owners", "events", "faults"):
        yield f"median {name} per seed: {statistics.median(getattr(report, name) for report in reports):g}"
    yield f"seeds in which each kind of fault fires: {_shares(report.kinds for report in reports)}"
    yield f"seeds that went these ways: {_shares(report.seen for report in reports)}"


def _shares(found: Iterable[Iterable[str]]) -> str:
    each = list(found)
    seen = Counter(itertools.chain.from_iterable(each))
    return ", ".join(f"{kind} {count * 100 / len(each):.0f} %" for kind, count in sorted(seen.items()))


def main() -> int:
    """0 when every rule held in every seed."""
    arguments = _arguments()
    limits = _limits(arguments)
    began = time.perf_counter()
    reports: list[Report] = []
    failed: list[Report] = []
    for report in _reports(arguments, limits):
        reports.append(report)
        if arguments.trace:
            print("\n".join(report.trace))
        if report.broken:
            failed.append(report)
            _told(report, limits, not arguments.no_shrink)
            if not arguments.keep_going:
                break
    print("\n".join(_figures(reports, time.perf_counter() - began)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
