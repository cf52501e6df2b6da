"""R10, R11: runs that are not in memory are read and ticked portion by portion, however many a batch has inputs for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rig import Rig
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.ports import Batch, LoadedRun

RUNS = [f"r{n}" for n in range(20)]
HEAVY = 6
"""Signals of 100 KB that each run has heard before its owner ends."""

LIMIT = 1_500_000
"""Two runs fit, or one with what it hears next."""


class Loads:
    """What a coordinator reads of runs: the bytes of each query, how often each run was read, and queries per commit."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.times: dict[str, int] = {}
        self.portions = [0]

    def watch(self, coordinator: Coordinator) -> None:
        """Look on from now on."""
        load, commit = coordinator.store.load, coordinator.store.commit

        def loaded(run_ids: Sequence[str], whole: Collection[str], at_most: int) -> dict[str, LoadedRun]:
            found = load(run_ids, whole, at_most)
            self.sizes.append(sum(len(raw) for run in found.values() for raw in run.records))
            for run_id in found:
                self.times[run_id] = self.times.get(run_id, 0) + 1
            self.portions[-1] += 1
            return found

        def committed(batch: Batch) -> int:
            self.portions.append(0)
            return commit(batch)

        coordinator.store.load = loaded  # type: ignore[method-assign]
        coordinator.store.commit = committed  # type: ignore[method-assign]

    @property
    def bounded(self) -> bool:
        """Whether all was read, and never more than the limit at once."""
        return max(self.sizes) <= LIMIT and sum(self.sizes) > 4 * LIMIT


def hear(rig: Rig, times: int, text: str, about: str) -> None:
    """Tell every run the same so often."""
    for number in range(times):
        for run_id in RUNS:
            rig.signal(run_id, text, signal_id=f"{about}{number}")


def heard(rig: Rig) -> int:
    """How many signals were applied."""
    (row,) = rig.rows("select count(*) as n from eec_workflow_signal where ns = {ns} and kind = 'signal'")
    return int(row["n"])


def test_a_batch_for_many_large_runs_is_read_in_portions(rig: Rig) -> None:
    running = rig.coordinator()
    rig.start(*RUNS, workflow="words", input=HEAVY + 1)
    hear(rig, HEAVY, "x" * 100_000, "heavy")
    until(lambda: heard(rig) == HEAVY * len(RUNS), what="their history")
    running.stop()
    hear(rig, 1, "last", "last")
    loads = Loads()
    rig.coordinator(rig.fast(load_bytes=LIMIT), prepare=loads.watch)
    rig.until_status("completed", *RUNS)
    assert loads.bounded, loads.sizes
    assert set(loads.times.values()) == {1}
    assert max(loads.portions) > 1, "several portions in one commit"
    rig.check()


def test_timers_that_are_due_together_are_taken_in_portions_and_read_once(rig: Rig) -> None:
    running = rig.coordinator()
    rig.start(*RUNS, workflow="patient", input=[3600.0] * HEAVY + [1.0])
    hear(rig, HEAVY, "x" * 100_000, "heavy")
    until(lambda: heard(rig) == HEAVY * len(RUNS), what="their history")
    running.stop()
    due = "select run_id from eec_workflow_run where ns = {ns} and wake_at < now()"
    until(lambda: len(rig.rows(due)) == len(RUNS), what="all of them due")
    loads = Loads()
    rig.coordinator(rig.fast(load_bytes=LIMIT), prepare=loads.watch)
    until(lambda: not rig.rows(due), what="their timers fired")
    assert loads.bounded, loads.sizes
    assert loads.times == dict.fromkeys(RUNS, 1), "to find what is due, and to tick"
    hear(rig, 1, "end", "end")
    rig.until_status("completed", *RUNS)
    rig.check()
