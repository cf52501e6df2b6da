"""Ratios of ours to theirs, within one run: the only figures that may be published."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from bench.peers.plan import FIGURES, OURS, PEERS, TUNED, Figure


@dataclass
class Measured:
    """Results of the harness, by label and workload."""

    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, label: str, workload: str, line: Mapping[str, Any]) -> None:
        """One more."""
        self.lines.setdefault((label, workload), []).append(line)

    def median(self, label: str, figure: Figure) -> float | None:
        """The median of that figure, None where it was not measured."""
        values = [line[figure.key] for line in self.lines.get((label, figure.workload), ()) if figure.key in line]
        return statistics.median(values) if values else None

    def ratio(self, ours: str, peer: str, figure: Figure) -> float | None:
        """How many times better ours is, None where one of them was not measured."""
        mine, theirs = self.median(ours, figure), self.median(peer, figure)
        if mine is None or theirs is None or not mine or not theirs:
            return None
        return figure.ratio(mine, theirs)


def ratios(measured: Measured) -> list[dict[str, Any]]:
    """One line per figure, ours and peer."""
    found = []
    for figure, ours, peer in ((f, o, p) for f in FIGURES for o in OURS for p in PEERS):
        ratio = measured.ratio(ours, peer, figure)
        if ratio is not None:
            line = {
                "figure": f"{figure.workload}_{figure.key}",
                "ours": ours,
                "peer": peer,
                "times": float(f"{ratio:.3g}"),
            }
            aim = figure.times.get(ours) if peer == TUNED else None
            found.append(line | ({"aim": aim} if aim else {}))
    return found


def table(measured: Measured, peers: Iterable[str]) -> Table:
    """For people: how many times better ours is than each peer."""
    shown = Table(title="how many times better than…", title_justify="left")
    shown.add_column("measure")
    shown.add_column("ours")
    peers = list(peers)
    for peer in peers:
        shown.add_column(peer, justify="right")
    for figure in FIGURES:
        for ours in OURS:
            found = {peer: measured.ratio(ours, peer, figure) for peer in peers}
            if any(each is not None for each in found.values()):
                cells = [
                    _cell(ratio, figure.times.get(ours) if peer == TUNED else None) for peer, ratio in found.items()
                ]
                shown.add_row(figure.title, ours, *cells)
    return shown


def _cell(ratio: float | None, aim: float | None) -> str:
    if ratio is None:
        return ""
    if aim is None:
        return f"{ratio:.3g} ×"
    colour = "green" if ratio >= aim else "red"
    return f"[{colour}]{ratio:.3g} ×[/] (≥ {aim:g})"
