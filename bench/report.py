"""The table, ``latest.json``, ``latest.svg``, and the comparison with the figures that were committed last."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import plot
from bench.results import Results
from bench.targets import TARGETS

HERE = Path(__file__).parent
LATEST = HERE / "out" / "latest.json"
QUICK = HERE / "out" / "quick.json"
COMMITTED = HERE / "figures.json"
_WIDTH = 150
_NEWS = 0.10
"""Differences below this share of the committed figure are the machine's weather."""


def publish(results: Results, *, quick: bool) -> None:
    """Write ``latest.json`` and ``.svg`` (``quick…``), print the table. Nothing that was not measured is in it."""
    path = QUICK if quick else LATEST
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_document(results, quick), indent=1) + "\n")
    caption = "ductor_stream: what was measured against its targets"
    path.with_suffix(".svg").write_text(
        plot.drawn(plot.bars(results), caption + (" (--quick: means nothing)" if quick else ""))
    )
    console = Console(width=max(Console().width, _WIDTH))
    console.print(_table(results, _committed()))
    if others := _others(results):
        console.print(others)
    if quick:
        console.print("[yellow]--quick: these figures mean nothing[/]")
    for warning in dict.fromkeys(results.warnings):
        console.print(f"[yellow]doubtful:[/] {warning}")
    console.print(f"written: {path} and {path.with_suffix('.svg').name}")


def _document(results: Results, quick: bool) -> dict[str, Any]:
    spreads = {key: results.spread(key) for key in results.samples}
    return {
        **{key: _rounded(value) for key, value in results.figures().items()},
        "spread": {key: [_rounded(each.least), _rounded(each.most), each.repeats] for key, each in spreads.items()},
        "details": json.loads(json.dumps(results.details), parse_float=lambda text: _rounded(float(text))),
        "doubtful": list(dict.fromkeys(results.warnings)),
        "machine": _machine(),
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
    }


def _rounded(value: float) -> float | None:
    """Four digits: no more was measured. JSON has no NaN."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _machine() -> dict[str, Any]:
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _committed() -> dict[str, Any]:
    if not COMMITTED.exists():
        return {}
    found: dict[str, Any] = json.loads(COMMITTED.read_text())
    return found


def _table(results: Results, committed: dict[str, Any]) -> Table:
    table = Table(title="targets", title_justify="left")
    for name, justify in (("measure", "left"), ("median", "right"), ("least … most", "right"), ("target", "right"),
                          ("reached", "left"), ("committed", "right"), ("change", "right")):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for target in TARGETS:
        if target.key not in results.samples:
            continue
        spread = results.spread(target.key)
        sign = "≥" if target.better == "higher" else "≤"
        met = "[green]yes[/]" if target.met(spread.median) else "[red]no[/]"
        before = committed.get(target.key)
        table.add_row(
            f"{target.title} [dim]{target.key}[/]",
            _shown(spread.median),
            f"{_shown(spread.least)} … {_shown(spread.most)}",
            f"{sign} {_shown(target.aim)} {target.unit}",
            met,
            _shown(before) if isinstance(before, (int, float)) else "",
            _change(spread.median, before, target.better),
        )
    return table


def _others(results: Results) -> Table | None:
    """Figures without a target: shapes, floors, sizes."""
    table = Table(title="further figures", title_justify="left")
    for name in ("key", "median", "least … most"):
        table.add_column(name, justify="left" if name == "key" else "right")
    named = {target.key for target in TARGETS}
    for key in results.samples:
        if key not in named:
            spread = results.spread(key)
            table.add_row(key, _shown(spread.median), f"{_shown(spread.least)} … {_shown(spread.most)}")
    return table if table.row_count else None


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _change(now: float, before: Any, better: str) -> str:
    if not isinstance(before, (int, float)) or not before:
        return ""
    change = now / before - 1
    if abs(change) < _NEWS:
        return f"{change:+.0%}"
    colour = "green" if (change > 0) == (better == "higher") else "red"
    return f"[{colour}]{change:+.0%}[/]"
