"""Who used the CPU, what was committed, and whether the machine was busy with something else meanwhile.

All of it is read from ``/proc`` and ``pg_stat_database``: differences between two moments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FOREIGN_LIMIT = 0.08
"""The share of the machine's CPU that others may take before a figure is marked: below, medians did not move."""


@dataclass(frozen=True)
class Usage:
    """What was used between two readings. CPU in seconds, by role; shares of all the machine's CPU time."""

    seconds: float
    cpu_s: Mapping[str, float]
    busy_share: float
    foreign_share: float
    steal_share: float
    commits: int

    @property
    def total_cpu_s(self) -> float:
        """CPU of all roles together."""
        return sum(self.cpu_s.values())

    def per_step_ms(self, steps: int) -> dict[str, float]:
        """CPU ms per step by role, and ``all``."""
        if not steps:
            return {}
        found = {role: seconds / steps * 1e3 for role, seconds in self.cpu_s.items()}
        return found | {"all": sum(found.values())}

    def warnings(self) -> list[str]:
        """What makes the figures doubtful."""
        found = []
        if self.foreign_share > FOREIGN_LIMIT:
            found.append(f"{self.foreign_share:.0%} of the CPU went to other processes")
        if self.steal_share > FOREIGN_LIMIT / 2:
            found.append(f"{self.steal_share:.0%} of the CPU was taken by the hypervisor")
        return found


@dataclass
class Meter:
    """Reads counters at ``start`` and ``stop``.

    ``roles``: role -> pids, each of which stands for its whole tree, but for this process, which stands for itself.
    """

    roles: Mapping[str, Sequence[int]]
    database: str
    _before: _Reading | None = field(default=None, init=False)

    def start(self) -> None:
        """The window begins."""
        self._before = _Reading.take(self.roles, self.database)

    def stop(self) -> Usage:
        """The window has ended."""
        after, before = _Reading.take(self.roles, self.database), self._before
        assert before is not None, "start the meter first"
        cpu = {role: after.cpu_s[role] - before.cpu_s[role] for role in self.roles}
        machine = {name: after.machine[name] - before.machine[name] for name in after.machine}
        # Without a window there are no shares; a tick is the least that can be told.
        whole = max(machine["all"], 1 / _TICKS_PER_S)
        return Usage(
            seconds=after.at - before.at,
            cpu_s=cpu,
            busy_share=machine["busy"] / whole,
            foreign_share=max(0.0, machine["busy"] - sum(cpu.values())) / whole,
            steal_share=machine["steal"] / whole,
            commits=after.commits - before.commits,
        )


@dataclass(frozen=True)
class _Reading:
    at: float
    cpu_s: Mapping[str, float]
    machine: Mapping[str, float]
    commits: int

    @classmethod
    def take(cls, roles: Mapping[str, Sequence[int]], database: str) -> _Reading:
        children = _children()
        cpu = {role: sum(_tree_cpu_s(pid, children) for pid in pids) for role, pids in roles.items()}
        return cls(time.perf_counter(), cpu, _machine_cpu_s(), _commits(database))


def resident_kb(pid: int) -> int:
    """Memory of a process that is its own (private and in RAM), in KB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    return 0


def _stat(pid: int) -> list[str]:
    """The fields after the command's name, which may have spaces and brackets in it."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
            except OSError:
                continue  # it has ended since the folder was read
    return found


def _tree_cpu_s(pid: int, children: Mapping[int, Sequence[int]]) -> float:
    """User and system time of a process and its descendants; those that have ended count through their parent."""
    ours = pid == os.getpid()  # everything measured is a child of ours, and has a role of its own
    try:
        ticks = sum(map(int, _stat(pid)[11 : 13 if ours else 15]))
    except OSError:
        return 0.0
    if ours:
        return ticks / _TICKS_PER_S
    return ticks / _TICKS_PER_S + sum(_tree_cpu_s(child, children) for child in children.get(pid, ()))


def _machine_cpu_s() -> dict[str, float]:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, idle, iowait, irq, softirq, steal = (int(each) / _TICKS_PER_S for each in fields)
    busy = user + nice + system + irq + softirq
    return {"busy": busy, "steal": steal, "all": busy + idle + iowait + steal}


def _commits(database: str) -> int:
    """Transactions committed in that database. A backend that never rests tells its count once a second."""
    if not database:
        return 0  # a peer that keeps its state elsewhere
    query = "select xact_commit from pg_stat_database where datname = current_database()"
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
