"""The report: one HTML file with its plots in it, and the same as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from chaos.plot import drawn
from chaos.series import Series

_STYLE = (
    "body{font:14px/1.5 sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#24292f}"
    "td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}.yes{color:#1a7f37}.no{color:#cf222e;font-weight:bold}"
    "pre{white-space:pre-wrap}"
)


def write_report(folder: Path, values: Mapping[str, Any], series: Series) -> Path:
    """Write ``report.html`` and ``report.json`` into the folder; returns the first."""
    document = {**values, "series": series.values()}
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    path = folder / "report.html"
    path.write_text("\n".join(_page(values, series)) + "\n", encoding="utf-8")
    return path


def _page(values: Mapping[str, Any], series: Series) -> Iterator[str]:
    verdict = "all checks hold" if values["good"] else "not all is well"
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>Chaos: {verdict}</title><style>{_STYLE}</style></head><body>'
    yield f'<h1>Chaos: <span class="{_class(values["good"])}">{verdict}</span></h1>'
    yield "<table>"
    for name, value in values.items():
        if not isinstance(value, Mapping | list | bool):
            yield f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(str(value))}</td></tr>"
    yield "</table>"
    yield drawn(series)
    yield "<h2>Checks</h2><table>"
    for claim, holds in values["checks"].items():
        yield f'<tr><td class="{_class(holds)}">{"holds" if holds else "broken"}</td><td>{escape(claim)}'
        faults = values["broken"].get(claim, [])
        yield f"<pre>{escape(chr(10).join(faults))}</pre></td></tr>" if faults else "</td></tr>"
    yield "</table>"
    yield from (f"<pre class=no>{escape(problem)}</pre>" for problem in values["problems"])
    yield from (f"<p>Not to be had here: {escape(n)} ({escape(why)})</p>" for n, why in values["unavailable"].items())
    yield "<h2>Faults</h2><table><tr><th>at</th><th>fault</th><th>what</th><th>reigned</th><th>mended after</th></tr>"
    for bar in series.bars:
        yield (
            f"<tr><td>{bar.began:.1f} s</td><td>{escape(bar.name)}</td><td>{escape(bar.told)}</td>"
            f"<td>{bar.mending - bar.began:.1f} s</td><td>{bar.mended - bar.mending:.1f} s</td></tr>"
        )
    yield "</table></body></html>"


def _class(good: bool) -> str:
    return "yes" if good else "no"
