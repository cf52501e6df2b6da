"""Plots over time by hand-written SVG: lines with an axis of their own, and a bar for each fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from chaos.series import Bar, Series

_LEFT, _WIDTH, _RIGHT = 140, 900, 20
_HEIGHT, _GAP, _ROW = 130, 46, 16
_COLOURS = ("#0969da", "#2da44e", "#cf222e")
_STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.title{font-weight:bold}.tick{fill:#6e7781}.end{text-anchor:end}"
    ".mid{text-anchor:middle}.grid{stroke:#d0d7de}.calm{fill:#ddf4ff}.reigns{fill:#cf222e}.mends{fill:#f5a3a3}"
    "polyline{fill:none;stroke-width:1.5}"
)


def drawn(series: Series) -> str:
    """The whole SVG."""
    end = max([*series.at, *(bar.mended for bar in series.bars), 1.0])
    panels: list[tuple[str, Mapping[str, Sequence[float | None]]]] = [
        ("runs per second", {"started": series.started, "ended": series.ended}),
        ("steps executed per second", {"executed": series.executed}),
        ("seconds from start to end of a run", {"median": series.p50_s, "99th percentile": series.p99_s}),
    ]
    names = sorted({bar.name for bar in series.bars})
    body: list[str] = []
    top = 20
    for title, lines in panels:
        body += _panel(top, title, series.at, lines, end)
        top += _HEIGHT + _GAP
    body += _faults(top, names, series.bars, end)
    height = top + _ROW * (len(names) + 1) + 40
    calm = f'<rect class="calm" x="{_x(series.calm_at, end):.1f}" y="0" width="{_x(end, end) - _x(series.calm_at, end):.1f}" height="{height - 24}"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}">',
            f"<style>{_STYLE}</style>{calm}",
            *body,
            *_axis(height - 10, end),
            "</svg>",
        ]
    )


def _x(seconds: float, end: float) -> float:
    return _LEFT + seconds / end * _WIDTH


def _panel(
    top: int, title: str, at: Sequence[float], lines: Mapping[str, Sequence[float | None]], end: float
) -> Iterator[str]:
    most = max([value for values in lines.values() for value in values if value is not None], default=0.0) or 1.0
    yield f'<text class="title" x="{_LEFT}" y="{top}">{escape(title)}</text>'
    for share in (0.0, 0.5, 1.0):
        y = top + 8 + _HEIGHT * (1 - share)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{most * share:.3g}</text>'
    for number, (name, values) in enumerate(lines.items()):
        colour, x = _COLOURS[number], _LEFT + 300 + number * 130
        points = " ".join(
            f"{_x(t, end):.1f},{top + 8 + _HEIGHT * (1 - value / most):.1f}"
            for t, value in zip(at, values, strict=True)
            if value is not None
        )
        yield f'<polyline stroke="{colour}" points="{points}"/>'
        yield f'<text x="{x}" y="{top}" style="fill:{colour}">{escape(name)}</text>'


def _faults(top: int, names: Sequence[str], bars: Sequence[Bar], end: float) -> Iterator[str]:
    yield f'<text class="title" x="{_LEFT}" y="{top}">faults: red while they reign, pale until mended</text>'
    for row, name in enumerate(names):
        y = top + 10 + row * _ROW
        yield f'<text class="end" x="{_LEFT - 6}" y="{y + 11}">{escape(name)}</text>'
        for bar in (bar for bar in bars if bar.name == name):
            for kind, start, stop in (("reigns", bar.began, bar.mending), ("mends", bar.mending, bar.mended)):
                x, width = _x(start, end), max(1.0, _x(stop, end) - _x(start, end))
                yield (
                    f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}">'
                    f"<title>{escape(bar.told)}</title></rect>"
                )


def _axis(y: float, end: float) -> Iterator[str]:
    step = next((step for step in (10, 30, 60, 120, 300, 600, 1_800, 3_600) if end / step <= 12), 7_200)
    for seconds in range(0, int(end) + 1, step):
        label = f"{seconds} s" if step < 60 else f"{seconds // 60} min"
        yield f'<text class="tick mid" x="{_x(seconds, end):.1f}" y="{y:.1f}">{label}</text>'
