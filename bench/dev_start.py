"""How long ``ductor-stream dev`` takes until it is ready: ``python -m bench.dev_start [TIMES]``.

In a folder without data (``new``), and again in the same folder (``again``). The JVM's cache is there: what a very
first start on a machine prepares is not counted.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

APP = """
from ductor_stream import App, Run

app = App("start")

@app.step()
async def one(order: str) -> str:
    return order

@app.workflow()
async def whole(run: Run, order: str) -> str:
    return await run.step(one, order)
"""
END_WITHIN_S = 60


def started(folder: Path) -> float:
    """Seconds from the command to its line of JSON."""
    command = [sys.executable, "-m", "ductor_stream.cli.main", "dev", "shop:app", "--json"]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        process.wait(END_WITHIN_S)
    if not line:
        raise SystemExit("dev did not start: run `make install`, then `ductor-stream dev` to see why")
    return took


def main() -> None:
    """Measure and print."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    new, again = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "shop.py").write_text(APP, encoding="utf-8")
            new.append(started(Path(folder)))
            again.append(started(Path(folder)))
    for name, seen in (("new", new), ("again", again)):
        each = ", ".join(f"{value:.2f}" for value in seen)
        print(f"{name:<6} median {statistics.median(seen):.2f} s, worst {max(seen):.2f} s ({each})")


if __name__ == "__main__":
    main()
