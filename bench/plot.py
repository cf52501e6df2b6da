"""The plot: each target's figure as a bar, how many times its aim was reached, by hand-written SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.results import Results
from bench.targets import TARGETS, Target

_DECADES = (-1.5, 1.5)
"""The axis, in powers of ten around the aim; what lies beyond is drawn to its edge and says its figure."""
_LABELS, _BARS, _FIGURES = 430, 420, 190
_ROW, _TOP, _BOTTOM = 24, 52, 30
_TICKS = (0.1, 0.3, 1, 3, 10)
_STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.title{font-size:15px;font-weight:bold}.tick{fill:#6e7781;text-anchor:middle}"
    ".label{text-anchor:end}.yes{fill:#2da44e}.no{fill:#cf222e}.grid{stroke:#d0d7de}.aim{stroke:#24292f;stroke-width:1.5}"
    ".spread{stroke:#24292f;stroke-opacity:.6}"
)


@dataclass(frozen=True)
class Bar:
    """One target: its figure, and the reach (1 is the aim, more is better) of its median and of both ends of its spread."""

    title: str
    figure: str
    reach: float
    worst: float
    best: float


def reach(target: Target, value: float) -> float:
    """How many times the aim is reached: 2 is twice as fast, or half as long, as aimed at."""
    if value <= 0 or not math.isfinite(value):
        return 0.0 if target.better == "higher" else math.inf
    return value / target.aim if target.better == "higher" else target.aim / value


def bars(results: Results) -> list[Bar]:
    """Of the targets that were measured, in the order of the table."""
    found = []
    for target in TARGETS:
        if target.key in results.samples:
            spread = results.spread(target.key)
            ends = sorted((reach(target, spread.least), reach(target, spread.most)))
            figure = f"{_shown(spread.median)} of {_shown(target.aim)} {target.unit}"
            found.append(Bar(target.title, figure, reach(target, spread.median), *ends))
    return found


def drawn(found: Sequence[Bar], caption: str) -> str:
    """The whole SVG."""
    width, height = _LABELS + _BARS + _FIGURES, _TOP + _ROW * len(found) + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="12" y="24" class="title">{escape(caption)}</text>',
    ]
    for tick in _TICKS:
        x, kind = _x(tick), "aim" if tick == 1 else "grid"
        lines.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - _BOTTOM + 4}"/>')
        label = "target" if tick == 1 else f"{tick:g} ×"
        lines.append(f'<text class="tick" x="{x:.1f}" y="{height - 10}">{label}</text>')
    for number, bar in enumerate(found):
        lines += _row(bar, _TOP + number * _ROW)
    return "\n".join([*lines, "</svg>", ""])


def _row(bar: Bar, top: int) -> list[str]:
    middle, kind = top + _ROW / 2, "yes" if bar.reach >= 1 else "no"
    length = max(1.0, _x(bar.reach) - _LABELS)
    return [
        f'<text class="label" x="{_LABELS - 8}" y="{middle + 4:g}">{escape(bar.title)}</text>',
        f'<rect class="{kind}" x="{_LABELS}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}"/>',
        f'<line class="spread" x1="{_x(bar.worst):.1f}" x2="{_x(bar.best):.1f}" y1="{middle:g}" y2="{middle:g}"/>',
        f'<text x="{_LABELS + _BARS + 10}" y="{middle + 4:g}">{escape(bar.figure)}</text>',
    ]


def _x(times: float) -> float:
    low, high = _DECADES
    power = low if times <= 0 else high if math.isinf(times) else math.log10(times)
    return _LABELS + (min(high, max(low, power)) - low) / (high - low) * _BARS


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
