"""``python -m chaos.figures``: what a crash and a rolling restart cost, measured under a steady load without other faults.

Each figure is read from what Postgres says of its commits (``track_commit_timestamp``), from the owners' logs (who took
which partition under which epoch), and from what workers recorded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from chaos.fleet import Place
from chaos.history import Commit, History, gathered
from chaos.run import calm
from chaos.world import Shape, World, opened

PROTOCOLS = ("classic", "consumer")
AWAY_S = 12.0
"""A killed process stays away for so long: past its session of six seconds, so that others take over."""
SETTLE_S = 5.0
CALM_S = 10.0


@dataclass(frozen=True)
class Taken:
    """A line of an owner's log: it took a partition. ``at`` is wall time."""

    at: float
    place: str
    partition: int
    epoch: int


@dataclass(frozen=True)
class Span:
    """A part of the measurement, from and to (monotonic seconds)."""

    name: str
    began: float
    ended: float


def measured(protocol: str, repeat: int, folder: Path) -> dict[str, Any]:
    """All figures of one group protocol."""
    shape = Shape(coordinators=3, serves=0, workers=3, rate=10.0, protocol=protocol)
    with opened(shape, 1, folder, lambda text: _say(f"{protocol}: {text}")) as world:
        world.load.begin()
        time.sleep(SETTLE_S)
        spans = list(_spans(world, repeat))
        problems = calm(world)
        history = gathered(world.records, world.postgres.primary.url(), world.topics.namespace)
    return {"protocol": protocol, **_figures(history, spans, folder / "logs"), "problems": problems}


def _spans(world: World, repeat: int) -> Iterator[Span]:
    began = time.monotonic()
    time.sleep(CALM_S)
    yield Span("calm", began, time.monotonic())
    for role in ("coordinator", "worker"):
        began = time.monotonic()
        # Not the static member, whose partitions wait for it until its session ends.
        places = [place for place in world.fleet.of() if place.role == role and place.instance is None]
        for number in range(repeat):
            _crash(world, places[number % len(places)])
        yield Span(f"{role} crashes", began, time.monotonic())
    began = time.monotonic()
    for place in world.fleet.of():
        world.fleet.end(place)
        world.fleet.start(place)
        world.fleet.until_ready()
    yield Span("rolling restart", began, time.monotonic())


def _crash(world: World, place: Place) -> None:
    _say(f"kill -9 of {place.name}")
    world.fleet.kill(place)
    time.sleep(AWAY_S)
    world.fleet.start(place)
    world.fleet.until_ready()
    time.sleep(SETTLE_S)


def _figures(history: History, spans: Sequence[Span], logs: Path) -> dict[str, Any]:
    wall = next(line["wall"] - line["at"] for line in history.lines if line["what"] == "clock")
    takes = sorted(_takes(logs), key=lambda taken: taken.at)
    kills = [
        (line["at"] + wall, line["place"])
        for line in history.lines
        if line["what"] == "killed" and any(span.began <= line["at"] <= span.ended for span in spans)
    ]
    times = [took for at, place in kills for took in takeover_times(history.commits, takes, at, place)]
    by_name = {span.name: span for span in spans}
    calm_span, rolling = by_name["calm"], by_name["rolling restart"]
    crashes = {role: sum(place.startswith(role) for _, place in kills) for role in ("coordinator", "worker")}
    return {
        "takeover_after_kill_s": _spread(times),
        "pause_in_calm_s": _spread(pauses(history.commits, calm_span.began + wall, calm_span.ended + wall)),
        "pause_in_rolling_restart_s": _spread(pauses(history.commits, rolling.began + wall, rolling.ended + wall)),
        "rolling_restart_s": round(rolling.ended - rolling.began, 1),
        "crashes": crashes,
        "redriven_attempts_per_crash": {
            role: round(repeats(history, by_name[f"{role} crashes"]) / count, 2) for role, count in crashes.items()
        },
        "redriven_attempts_in_rolling_restart": repeats(history, rolling),
        "runs": len(history.runs),
    }


def takeover_times(commits: Sequence[Commit], takes: Sequence[Taken], at: float, place: str) -> list[float]:
    """For each partition that ``place`` owned when it was killed: seconds until the first commit by its next owner."""
    owners: dict[int, Taken] = {}
    for taken in takes:
        if taken.at < at:
            owners[taken.partition] = taken
    found = []
    for partition, owner in owners.items():
        if owner.place == place:
            later = [c.at for c in commits if c.partition == partition and c.epoch > owner.epoch and c.at is not None]
            found += [round(min(later) - at, 3)] if later else []
    return found


def pauses(commits: Sequence[Commit], began: float, ended: float) -> list[float]:
    """By partition, the longest time without a commit between these two (wall times)."""
    moments: dict[int, list[float]] = defaultdict(list)
    for commit in commits:
        if commit.at is not None and began <= commit.at <= ended:
            moments[commit.partition].append(commit.at)
    edges = [[began, *sorted(found), ended] for _, found in sorted(moments.items())]
    return [round(max(b - a for a, b in itertools.pairwise(each)), 3) for each in edges]


def repeats(history: History, span: Span) -> int:
    """Executions of attempts that had been executed before, in that span."""
    seen: set[tuple[str, int]] = set()
    count = 0
    for each in sorted(history.executed, key=lambda executed: executed.at):
        again = (each.key, each.generation) in seen
        count += again and span.began <= each.at <= span.ended
        seen.add((each.key, each.generation))
    return count


def _takes(logs: Path) -> Iterator[Taken]:
    for path in logs.glob("*.log"):
        for line in path.read_text("utf-8", "replace").splitlines():
            if '"partition taken"' in line:
                told = json.loads(line)
                at = datetime.fromisoformat(told["time"]).timestamp()
                yield Taken(at, path.name.partition(".")[0], told["partition"], told["epoch"])


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
        "count": len(values),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m chaos.figures", description=__doc__)
    parser.add_argument("--repeat", type=int, default=6, help="crashes of each kind (default: %(default)s)")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help="of the groups (default: %(default)s)")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory(prefix="ductor-figures-") as folder:
        for protocol in options.protocols.split(","):
            found.append(measured(protocol, options.repeat, Path(folder) / protocol))
    print(json.dumps(found, indent=2))
    return 1 if any(each["problems"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
