"""How many seeds each deliberate bug needs: ``PYTHONPATH=tests python tests/simulation/hunt.py 0:2000 [names]``.

Prints lines for ``test_checkers_bite.FOUND_AT`` and the table of ``docs/proof.md``. Each bug gets a process of its own.
"""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ProcessPoolExecutor

from ductor_stream.testing.simulation import simulate
from simulation.blind_bugs import BLIND
from simulation.bugs import BUGS

ALL = {**BUGS, **BLIND}


def hunt(name: str, seeds: range) -> tuple[str, int | None, str]:
    """The bug, the first seed that finds it, and what was said."""
    logging.getLogger("ductor_stream").setLevel(logging.CRITICAL + 1)
    with ALL[name]():
        for seed in seeds:
            report = simulate(seed)
            if report.broken:
                return name, seed, report.broken
    return name, None, "not found"


def main() -> None:
    """Hunt them all."""
    first, _, end = sys.argv[1].rpartition(":")
    seeds, names = range(int(first or 0), int(end)), sys.argv[2:] or list(ALL)
    with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        for found in [pool.submit(hunt, name, seeds) for name in names]:
            name, seed, told = found.result()
            print(f"{name}\t{seed}\t{told[:110]}", flush=True)


if __name__ == "__main__":
    main()
