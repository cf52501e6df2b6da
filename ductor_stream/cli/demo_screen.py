"""What the demo shows while it runs and at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ductor_stream.cli.demo_checks import Check, Latency, Progress, shown
from ductor_stream.cli.demo_fleet import Member

_LINE_EVERY_S = 2.0
"""Where there is no terminal, a line this often: enough for a log, too few to bury it."""
_BAR_WIDTH = 40
_FAULTS_TOLD = 20
_GLYPHS = {"running": ("●", "green"), "killed": ("✗", "red")}


class Now(msgspec.Struct):
    """The state of the demo that the screen draws."""

    orders: int
    produced: int = 0
    progress: Progress = Progress({})
    members: list[Member] = []


class Screen:
    """Live bars on a terminal, lines elsewhere. What happens is told above the bars and stays.

    It is made when the command begins: the time that it tells includes the start of the servers.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._line_at = 0.0
        self._began = time.monotonic()

    def tell(self, text: str, style: str = "") -> None:
        """One thing that happened, with the seconds since the beginning."""
        self._console.print(Text.assemble((f"{self.seconds():6.1f} s  ", "dim"), (text, style)))

    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """From here on ``draw`` shows progress."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def end(self) -> None:
        """No more progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def draw(self, now: Now) -> None:
        """Show how far it is."""
        if self._live is not None:
            self._live.update(Group(_bars(now), _members(now.members)))
        elif time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_EVERY_S
            self.tell(f"ordered {now.produced}, completed {now.progress.completed}, steps {now.progress.steps}")


def _bars(now: Now) -> Table:
    table = Table.grid(padding=(0, 1))
    for name, count in (
        ("ordered", now.produced),
        ("started", now.progress.known),
        ("completed", now.progress.completed),
    ):
        bar = ProgressBar(total=now.orders, completed=count, width=_BAR_WIDTH)
        table.add_row(Text(name, style="bold"), bar, f"{count} of {now.orders}")
    table.add_row(Text("steps", style="bold"), str(now.progress.steps), f"{now.progress.failed_attempts} retried")
    return table


def _members(members: Sequence[Member]) -> Text:
    text = Text()
    for member in members:
        glyph, style = _GLYPHS[member.state]
        text.append(f"{glyph} ", style=style)
        text.append(f"{member.name} (pid {member.process.pid})  ")
    return text


class Outcome(msgspec.Struct):
    """All that the demo found."""

    namespace: str
    orders: int
    progress: Progress
    attempts_redriven: int
    records_redriven: int
    latency: Latency
    seconds: float
    checks: list[Check]

    @property
    def good(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def values(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "namespace": self.namespace,
            "orders": self.orders,
            "runs_completed": self.progress.completed,
            "steps": self.progress.steps,
            "attempts_retried": self.progress.failed_attempts,
            "attempts_redriven": self.attempts_redriven,
            "records_redriven": self.records_redriven,
            "late_results": self.progress.late_results,
            "latency_p50_s": self.latency.p50,
            "latency_p99_s": self.latency.p99,
            "seconds": round(self.seconds, 1),
            "checks": {check.claim: check.holds for check in self.checks},
            "faults": [fault for check in self.checks for fault in check.faults][:_FAULTS_TOLD],
        }


def print_outcome(console: Console, outcome: Outcome) -> None:
    """The table at the end."""
    table = Table(title=f"\n{outcome.orders} orders, two processes killed", title_justify="left", show_header=False)
    for name, value in (
        ("runs completed", f"{outcome.progress.completed} of {outcome.orders}"),
        ("steps", str(outcome.progress.steps)),
        ("attempts that failed and were retried", str(outcome.progress.failed_attempts)),
        ("attempts redriven after the kills", f"{outcome.attempts_redriven}, of {outcome.records_redriven} records"),
        ("late results, recorded and ignored", str(outcome.progress.late_results)),
        ("latency of a run, p50", _seconds(outcome.latency.p50)),
        ("latency of a run, p99", _seconds(outcome.latency.p99)),
        ("time of the whole demo, start of the servers included", _seconds(outcome.seconds)),
    ):
        table.add_row(name, value)
    table.add_section()
    for check in outcome.checks:
        table.add_row(check.claim, Text(shown(check), style="bold green" if check.holds else "bold red"))
    console.print(table)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
