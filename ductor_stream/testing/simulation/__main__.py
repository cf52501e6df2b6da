"""``python -m ductor_stream.testing.simulation --seeds A:B``: run seeds, print figures, and what a failing one did."""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from ductor_stream.testing.simulation import Report, simulate

_CHUNK = 10


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ductor_stream.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="A:B, the seeds from A up to but without B; or one seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print the trace of each seed")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first seed that fails")
    return parser.parse_args()


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _reports(seeds: range, jobs: int) -> Iterator[Report]:
    if jobs <= 1:
        yield from map(simulate, seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        yield from pool.map(simulate, seeds, chunksize=_CHUNK)


def _quiet() -> None:
    logging.getLogger("ductor_stream").setLevel(logging.CRITICAL + 1)


def _figures(reports: list[Report], seconds: float) -> Iterable[str]:
    yield f"{len(reports)} seeds in {seconds:.1f} s: {len(reports) / seconds * 60:.0f} seeds a minute"
    for name in ("runs", "owners", "events", "faults"):
        yield f"median {name} per seed: {statistics.median(getattr(report, name) for report in reports):g}"
    seen = Counter(kind for report in reports for kind in report.kinds)
    shares = ", ".join(f"{kind} {count * 100 / len(reports):.0f} %" for kind, count in sorted(seen.items()))
    yield f"seeds in which each kind of fault fires: {shares}"


def main() -> int:
    """0 when every rule held in every seed."""
    arguments = _arguments()
    _quiet()
    began = time.perf_counter()
    reports: list[Report] = []
    failed: list[Report] = []
    for report in _reports(_range(arguments.seeds), arguments.jobs):
        reports.append(report)
        if arguments.trace:
            print("\n".join(report.trace))
        if report.broken:
            failed.append(report)
            print(f"seed {report.seed}: {report.broken}")
            print(f"again: python -m ductor_stream.testing.simulation --seeds {report.seed} --trace", flush=True)
            if not arguments.keep_going:
                break
    print("\n".join(_figures(reports, time.perf_counter() - began)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
