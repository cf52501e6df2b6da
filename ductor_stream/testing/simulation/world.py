"""What one simulation is made of beside the product: virtual time, one generator, a trace, and the rates of faults."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from random import Random

import msgspec

EPOCH_MS = 1_900_000_000_000
"""When the simulated world begins (ms since 1970): far from anybody's real time."""


SESSION_US = 6_000_000
"""How long a group misses a member until it gives its partitions to others."""


class Violation(BaseException):
    """A rule is broken. No Exception: the product must not handle it."""

    def __init__(self, rule: str, told: str) -> None:
        super().__init__(f"{rule}: {told}")
        self.rule, self.told = rule, told


class Faults(msgspec.Struct):
    """How often what goes wrong, per opportunity. Drawn anew for every seed, so that seeds differ in kind."""

    crash: float = 0.0
    pause: float = 0.0
    expel: float = 0.0
    store_away: float = 0.0
    log_away: float = 0.0
    unknown: float = 0.0
    refused: float = 0.0
    conflict: float = 0.0
    undelivered: float = 0.0
    duplicate: float = 0.0
    worker: float = 0.0
    elsewhere: float = 0.0
    outage: float = 0.0
    rebalance: float = 0.0
    recreate: float = 0.0
    clock: float = 0.0
    redeploy: float = 0.0
    worker_crash: float = 0.0
    worker_gone: float = 0.0
    uncommitted: float = 0.0
    garbage: float = 0.0
    cut: float = 0.0
    poison: float = 0.0
    stall: float = 0.0

    @staticmethod
    def drawn(rng: Random) -> Faults:
        """About half of the kinds, each at a rate of its own."""
        most = {
            "crash": 0.004, "pause": 0.02, "expel": 0.3, "store_away": 0.004, "log_away": 0.003, "unknown": 0.05,
            "refused": 0.02, "conflict": 0.03, "undelivered": 0.08, "duplicate": 0.2, "worker": 0.3, "elsewhere": 0.3,
            "outage": 0.002, "rebalance": 0.006, "recreate": 0.0015, "cut": 0.002,
            "clock": 0.002, "redeploy": 0.001, "worker_crash": 0.003, "worker_gone": 0.01, "uncommitted": 0.1,
            "garbage": 0.1, "poison": 0.004, "stall": 0.1,
        }  # fmt: skip
        return Faults(**{name: rate * rng.choice([0.0, 0.3, 1.0, 1.0]) for name, rate in most.items()})


class Limits(msgspec.Struct, frozen=True):
    """What is left out of a seed's world, to find the least that still fails.

    ``without`` are kinds of faults, ``dropped`` run ids; ``faults`` is how many faults there are at most (-1: all).
    """

    without: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    faults: int = -1


class World:
    """One world. Time is in microseconds since its beginning; only ``advance`` moves it.

    Each kind of fault has a generator of its own, so that one can be left out and the others stay.
    """

    def __init__(self, seed: int, limits: Limits) -> None:
        self.seed, self.limits = seed, limits
        self.rng = Random(seed)
        self.us = 0
        self.skew_ms = 0
        self.faulty = True
        rates = msgspec.structs.asdict(Faults.drawn(self.rng))
        self._kinds = {
            kind: (rate, Random(f"{seed}/{kind}").random)
            for kind, rate in rates.items()
            if rate and kind not in limits.without
        }
        self._left = limits.faults
        self.committers: set[str] = set()
        self.fired: Counter[str] = Counter()
        self.trace: list[str] = []
        self.store_down_until = 0
        self.log_down_until = 0

    @property
    def ms(self) -> int:
        """Milliseconds since 1970 by Postgres's clock, which may jump; nobody else's is asked."""
        return EPOCH_MS + self.skew_ms + self.us // 1000

    def advance(self, us: int) -> None:
        """Time passes."""
        self.us += max(0, us)

    def chance(self, kind: str) -> bool:
        """Whether the fault of that kind happens now."""
        known = self._kinds.get(kind)
        return known is not None and known[1]() < known[0] and self.fires(kind)

    def gap(self, kind: str) -> int:
        """At which opportunity from now on it happens next: 1 is the very next one. For what has one at every step."""
        rate, random = self._kinds[kind]
        return 1 + int(math.log(1.0 - random()) / math.log(1.0 - rate))

    def fires(self, kind: str) -> bool:
        """It happens, unless there were faults enough."""
        if self._left == 0:
            return False
        self._left -= 1
        self.fired[kind] += 1
        return True

    def calm(self) -> None:
        """Nothing goes wrong from now on."""
        self.faulty = False
        self._kinds = {}
        self.store_down_until = self.log_down_until = 0

    def knows(self, kind: str) -> bool:
        """Whether that kind of fault ever happens in this world."""
        return kind in self._kinds

    def note(self, who: str, what: str) -> None:
        """One line of the trace."""
        self.trace.append(f"{self.us / 1000:.3f} {who} {what}")

    def digest(self) -> str:
        """Names the whole trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


class VirtualClock:
    """``ports.Clock`` of one process: the store's time since the last sample. Sleeping makes the world's time pass."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store_ms = 0
        self._sampled_us = 0

    def now(self) -> int:
        """Milliseconds since 1970 UTC; 0 before the first sample."""
        return self._store_ms + (self._world.us - self._sampled_us) // 1000 if self._store_ms else 0

    def observe(self, store_now: int) -> None:
        """A sample of the store's clock (ms)."""
        self._store_ms, self._sampled_us = store_now, self._world.us

    def monotonic(self) -> float:
        """Seconds since the world began, and one more: 0 means never in places."""
        return 1.0 + self._world.us / 1e6

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self._world.advance(int(seconds * 1e6))
