"""What clients do: runs of many kinds, each a small script of messages with the time of each. Drawn by a seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from chaos.app import Plan

PARTITIONERS = ("murmur2_random", "consistent_random")
"""The Java client's, and librdkafka's own default, by which an event arrives elsewhere than at its run's home."""


@dataclass(frozen=True)
class Letter:
    """One message of a client. ``id`` names it for all times, ``tries`` counts how often it was sent."""

    id: str
    run: str
    body: dict[str, Any]
    partitioner: str
    tries: int = 0


class Scripts:
    """Draws runs: what each does, and what its clients send when. Same seed, same runs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = itertools.count(1)

    def next(self) -> tuple[str, list[tuple[float, Letter]]]:
        """The kind of the next run, and its messages, each with its delay in seconds."""
        dice, number = self._random, next(self._count)
        kind = dice.choice(_KINDS)
        run = f"{kind}-{number:06}"
        partitioner = dice.choices(PARTITIONERS, (2, 1))[0]

        def letter(name: str, body: dict[str, Any]) -> Letter:
            return Letter(f"{run}/{name}", run, {**body, "run_id": run}, partitioner)

        plan = _plan(kind, dice)
        workflow = "endless" if kind in ("cancelled", "terminated") else "mixed"
        start = {"type": "run.start", "workflow": workflow, "input": asdict(plan), "start_id": f"{run}/start"}
        script = [(dice.choice((0.0, 0.0, 0.3)), letter("start", start))]
        for n in range(plan.words * plan.laps):
            body = {"type": "run.signal", "name": "word", "payload": n, "signal_id": f"{run}/word-{n}"}
            script.append((0.1 + n * dice.choice((0.0, 0.05, 0.5)), letter(f"word-{n}", body)))
        if workflow == "endless":
            order = {"type": "run.cancel" if kind == "cancelled" else "run.terminate", "command_id": f"{run}/end"}
            script.append((dice.uniform(0.0, 4.0), letter("end", order)))
        return kind, script


def _plan(kind: str, dice: random.Random) -> Plan:
    plan = Plan(steps=dice.randint(1, 4))
    changes: dict[str, dict[str, Any]] = {
        "fan": {"fan": dice.randint(3, 12)},
        "nap": {"nap_ms": dice.randint(100, 3_000)},
        "words": {"words": dice.randint(1, 5)},
        "family": {"children": dice.randint(1, 3)},
        "laps": {"laps": dice.randint(2, 3), "words": dice.randint(0, 1)},
        "slow": {"slow": True},
    }
    return replace(plan, **changes.get(kind, {}))


_KINDS = ("chain", "chain", "fan", "nap", "words", "words", "family", "laps", "slow", "cancelled", "terminated")
