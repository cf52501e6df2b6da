"""``python -m chaos``: reign for some minutes, then calm, then judge."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from chaos.checks import judged, redriven
from chaos.faults import FAULTS, unavailable
from chaos.history import History, gathered
from chaos.report import write_report
from chaos.schedule import GAP_S, Storm, drawn
from chaos.series import latencies_of, series_of
from chaos.world import Shape, World, opened
from ductor_stream.cli.demo_checks import Check

CLOSED_WITHIN_S = 180.0
"""After the faults, and after the last end of a run that was heard: take-overs and time-outs last seconds, the work that
has piled up is done as fast as the machine can."""
_LOOK_S = 1.0
_DISK_MB, _DISK_MB_PER_MINUTE = 1_024, 40
"""Room for what is kept of the runs, on disks that are small on purpose (in memory, taken as it fills)."""
_AT_WORK = """
select 'open runs', count(*) from eec_workflow_run join eec_namespace using (ns) where name = %(name)s and closed_at is null
union all select 'rows in the outbox', count(*) from eec_outbox join eec_namespace using (ns) where name = %(name)s
union all select 'rows in the inbox', count(*)
  from eec_inbox join eec_namespace using (ns) where name = %(name)s and partition >= 0
"""


@dataclass(frozen=True)
class Outcome:
    """All that came of it. ``problems`` is what went wrong with the chaos itself."""

    seed: int
    seconds: float
    faults: int
    history: History
    checks: list[Check]
    redriven: int
    problems: list[str]
    unavailable: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether chaos reigned, and every check holds."""
        return not self.problems and all(check.holds for check in self.checks)

    def values(self) -> dict[str, Any]:
        """For programs."""
        median, p99, longest = latencies_of(self.history)
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": self.faults,
            "runs": len(self.history.runs),
            "messages": len(self.history.sent),
            "messages_deleted_unread": sum(each.upto - each.start for each in self.history.lost),
            "steps_executed": len(self.history.executed),
            "redriven_attempts": self.redriven,
            "processes_that_ended_by_themselves": len(self.history.fallen),
            "run_p50_s": median,
            "run_p99_s": p99,
            "run_longest_s": longest,
            "checks": {check.claim: check.holds for check in self.checks},
            "broken": {check.claim: check.faults[:20] for check in self.checks if not check.holds},
            "problems": self.problems,
            "unavailable": self.unavailable,
            "good": self.good,
        }


def reign(shape: Shape, seconds: float, names: Sequence[str], seed: int, folder: Path, say: Any) -> Outcome:
    """The whole play. Raises what keeps the world from opening."""
    missing = {name: why for name, why in unavailable().items() if name in names}
    if set(names) == set(missing):
        raise ValueError("; ".join(f"{name} cannot be had here: {why}" for name, why in missing.items()))
    # Drawn from all that are asked for, so that a seed is the same one on a machine that lacks some.
    faults = drawn(seed, names, (int(seconds / GAP_S[0]) + 1) * len(names))
    with opened(_equipped(shape, seconds, set(names) - set(missing)), seed, folder, say) as world:
        storm = Storm(world, [planned for planned in faults if planned.name not in missing])
        ending = threading.Event()
        sampler = threading.Thread(target=_sample, args=(world, ending), daemon=True)
        sampler.start()
        began = time.monotonic()
        world.load.begin()
        storm.play(seconds)
        took = time.monotonic() - began
        problems = [*storm.errors, *calm(world)]
        ending.set()
        sampler.join(10)
        history = gathered(world.records, world.postgres.primary.url(), world.topics.namespace)
    return Outcome(seed, took, storm.played, history, judged(history), redriven(history), problems, missing)


def _equipped(shape: Shape, seconds: float, faults: Collection[str]) -> Shape:
    """With what these faults lay hands on, and no more: it makes all else quicker, or slower."""
    disk_mb = _DISK_MB + int(seconds / 60 * _DISK_MB_PER_MINUTE) if "disk-full" in faults else 0
    return replace(shape, disk_mb=disk_mb, clocks="clock" in faults)


def repeating(shape: Shape, seconds: float, names: Sequence[str], seed: int) -> str:
    """The command that plays the same faults and runs again."""
    command = f"python -m chaos --seed {seed} --minutes {seconds / 60:g} --rate {shape.rate:g}"
    command += f" --coordinators {shape.coordinators} --serves {shape.serves} --workers {shape.workers}"
    command += f" --protocol {shape.protocol}"
    return command if list(names) == list(FAULTS) else f"{command} --faults {','.join(names)}"


def calm(world: World) -> list[str]:
    """The faults are over: wait until all is at rest. Returns what did not come to rest in time."""
    world.say("the faults are over; every run must close")
    world.recorder.note("calm")
    problems = []
    if not world.load.finish(CLOSED_WITHIN_S):
        problems.append("clients could not send what they had to say")
    closed, since = world.observer.closed_runs, time.monotonic()
    while (left := _left(world)) and time.monotonic() - since < CLOSED_WITHIN_S:
        time.sleep(_LOOK_S)
        if world.observer.closed_runs > closed:
            closed, since = world.observer.closed_runs, time.monotonic()
    if left:
        world.say(f"not at rest, and no end of a run was heard for {CLOSED_WITHIN_S:.0f} s: {left}")
    world.observer.catch_up()
    return problems


def _left(world: World) -> str:
    """What keeps the world from rest; empty when all is done."""
    try:
        with world.postgres.connect() as connection:
            counts = dict(connection.execute(_AT_WORK, {"name": world.topics.namespace}).fetchall())
    except psycopg.Error as error:
        return f"Postgres: {error}"
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _sample(world: World, ending: threading.Event) -> None:
    """Every few seconds a line on the screen; the figures themselves are read from the records."""
    while not ending.wait(10.0):
        world.say(f"      started {world.load.started}, ends heard {world.observer.closed_runs}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit status 0: every check holds; 1: one does not; 2: the chaos itself failed."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{fault.name:18} {fault.told}" for fault in FAULTS.values()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    logging.getLogger("ductor_stream").addHandler(logging.NullHandler())
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 32)
    shape = Shape(options.coordinators, options.serves, options.workers, rate=options.rate, protocol=options.protocol)
    seconds, names, folder = options.minutes * 60, options.faults, options.report
    say(again := repeating(shape, seconds, names, seed))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = reign(shape, seconds, names, seed, folder, say)
    except Exception as error:  # noqa: BLE001 - whatever it is, it says nothing of what is attacked
        say(f"no chaos: {type(error).__name__}: {error}; what was written is in {folder}")
        return 2
    write_report(folder, outcome.values(), series_of(outcome.history))
    _print(outcome, options.json, folder, again)
    return 0 if outcome.good else 2 if outcome.problems else 1


def _print(outcome: Outcome, as_json: bool, folder: Path, again: str) -> None:
    values = outcome.values()
    if as_json:
        print(json.dumps(values, indent=2))
        return
    for name, value in values.items():
        if not isinstance(value, dict | list):
            print(f"{name:24} {value}")
    for name, why in outcome.unavailable.items():
        print(f"not to be had here: {name} ({why})")
    for check in outcome.checks:
        print(f"{'holds ' if check.holds else 'BROKEN'} {check.claim}")
        print("".join(f"         {fault}\n" for fault in check.faults[:5]), end="")
    print("".join(f"PROBLEM {problem}\n" for problem in outcome.problems), end="")
    print(f"{folder / 'report.html'}\nthe same faults again: {again}")


def _chosen(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in FAULTS]:
        raise argparse.ArgumentTypeError(f"no fault is called {unknown[0]}; there are {', '.join(FAULTS)}")
    return names or list(FAULTS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults reign (default: %(default)s)")
    parser.add_argument(
        "--faults", type=_chosen, default="", help="only these, with commas between them (--list tells all)"
    )
    parser.add_argument("--seed", type=int, help="which faults and which runs; none makes one up")
    parser.add_argument(
        "--report", type=Path, default=Path(".chaos"), help="folder of the report (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=Shape.rate, help="runs started per second (default: %(default)s)")
    parser.add_argument("--coordinators", type=int, default=Shape.coordinators)
    parser.add_argument("--serves", type=int, default=Shape.serves, help="coordinators that execute steps as well")
    parser.add_argument("--workers", type=int, default=Shape.workers)
    parser.add_argument("--protocol", choices=("auto", "classic", "consumer"), default=Shape.protocol)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    return parser
