"""Every metric of ductor_stream, declared once: its attribute, its name, its meaning and its labels.

``Metrics(registry, app="shop")`` gives one object per app (namespace) and process. All metrics carry the label
``app``, so that a process that serves several apps can be read apart. Metrics without further labels are used
as they are (``metrics.ticks.inc()``); those with labels are indexed (``metrics.runs_closed["completed"].inc()``),
which is a plain dict lookup after the first use. ``docs/operations/metrics.md`` is generated from these
declarations (``python -m ductor_stream.telemetry.metrics``) and checked by a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ductor_stream.telemetry.declaration import Family, Single

# A commit of one run takes about 0.4 ms, a batch of hundreds some 10 ms, and beyond 5 s something is wrong.
_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# What people wait for: from a few milliseconds to an hour behind a full queue.
_SLOW = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Metrics:
    """All metrics of one app in this process. Without a registry they are counted and shown nowhere (tests, clients).

    Everything here may be used from any thread.
    """

    # -- coordinator: runs --
    runs_started = Single(Counter, "coordinator", "ductor_runs_started", "Runs (executions) that were started.")
    runs_closed = Family(
        Counter,
        "coordinator",
        "ductor_runs_closed",
        "Runs that ended, by how: completed, failed, cancelled, terminated, timed_out.",
        labels=("outcome",),
    )
    runs_suspended = Family(
        Counter,
        "coordinator",
        "ductor_runs_suspended",
        "Times a run was suspended (parked), by reason: bug, nondeterminism, version_missing, overrun, stuck, died.",
        labels=("reason",),
    )
    runs_resumed = Single(Counter, "coordinator", "ductor_runs_resumed", "Times a suspended or paused run went on.")
    runs_cached = Single(Gauge, "coordinator", "ductor_runs_cached", "Runs whose state this owner keeps in memory.")
    runs_loaded = Single(
        Counter, "coordinator", "ductor_runs_loaded", "Runs read from Postgres and rebuilt, since they were not cached."
    )

    transitions_folded = Single(
        Counter, "coordinator", "ductor_transitions_folded", "Old transitions folded into their run's summary (R10)."
    )

    # -- coordinator: the loop --
    events = Family(
        Counter, "coordinator", "ductor_events", "Records taken from the inbound topics.", labels=("topic",)
    )
    ticks = Single(Counter, "coordinator", "ductor_ticks", "Ticks that were committed.")
    batch_size = Single(Histogram, "coordinator", "ductor_batch_size", "Events in one committed batch.", buckets=_SIZES)
    commit_seconds = Single(
        Histogram, "coordinator", "ductor_commit_seconds", "Time of one commit to Postgres.", buckets=_FAST
    )
    dispatch_seconds = Single(
        Histogram,
        "coordinator",
        "ductor_dispatch_seconds",
        "Time from a commit until the broker has acknowledged all that the batch produced.",
        buckets=_FAST,
    )
    conflicts = Single(
        Counter,
        "coordinator",
        "ductor_conflicts",
        "Runs that lost their version check in a commit (R3), or whose row another session keeps locked.",
    )
    livelocks = Single(
        Counter, "coordinator", "ductor_livelocks", "Runs that were failed since they lost every version check."
    )
    redrives = Single(
        Counter, "coordinator", "ductor_redrives", "Records dispatched again that a crash may have swallowed (R5)."
    )
    attempts_redriven = Single(
        Counter, "coordinator", "ductor_attempts_redriven", "Attempts among the redriven records: their tasks."
    )
    lost_dispatches = Family(
        Counter,
        "coordinator",
        "ductor_lost_dispatches",
        "Attempts whose task is gone though nobody began it (R9), by what is done: redriven or given_up.",
        labels=("stage",),
    )
    unconfirmed_batches = Single(
        Gauge, "coordinator", "ductor_unconfirmed_batches", "Committed batches the broker has not fully acknowledged."
    )
    undeliverable = Family(
        Counter,
        "coordinator",
        "ductor_undeliverable",
        "Records the broker did not take; permanent is yes or no.",
        labels=("permanent",),
    )
    outages = Family(
        Counter,
        "coordinator",
        "ductor_outages",
        "Times that an outside was found unreachable: kafka or postgres.",
        labels=("of",),
    )

    # -- coordinator: input --
    late_results = Single(
        Counter, "coordinator", "ductor_late_results", "Results whose fence was not current: recorded, changed nothing."
    )
    duplicate_inputs = Family(
        Counter,
        "coordinator",
        "ductor_duplicate_inputs",
        "Inputs that were applied before and changed nothing: start, signal, command, result or inbox.",
        labels=("kind",),
    )
    dead_letters = Family(
        Counter, "coordinator", "ductor_dead_letters", "Records put to dead letters, by reason.", labels=("reason",)
    )
    sent_home = Single(
        Counter, "coordinator", "ductor_sent_home", "Events that arrived off their run's home partition (R12)."
    )
    records_lost = Single(
        Counter, "coordinator", "ductor_records_lost", "Records deleted from an inbound topic before they were read."
    )

    # -- coordinator: attempts and timers --
    attempts_dispatched = Family(
        Counter,
        "coordinator",
        "ductor_attempts_dispatched",
        "Attempts dispatched, by path: kafka, or syncmatch for a worker in the same process.",
        labels=("path",),
    )
    attempts_finished = Family(
        Counter,
        "coordinator",
        "ductor_attempts_finished",
        "Attempts whose end was recorded, by outcome: completed, failed, cancelled, rejected, timed_out.",
        labels=("outcome",),
    )
    attempts_in_flight = Single(
        Gauge, "coordinator", "ductor_attempts_in_flight", "Attempts dispatched by cached runs and not yet finished."
    )
    timer_lateness_seconds = Single(
        Histogram,
        "coordinator",
        "ductor_timer_lateness_seconds",
        "How long after its due time a sleep, a deadline of a workflow or a retry's back-off was applied.",
        buckets=_SLOW,
    )

    # -- coordinator: ownership --
    partitions_owned = Single(Gauge, "coordinator", "ductor_partitions_owned", "Run partitions that this process owns.")
    takeovers = Single(Counter, "coordinator", "ductor_takeovers", "Times a partition was taken and its epoch raised.")
    ownership_lost = Single(
        Counter, "coordinator", "ductor_ownership_lost", "Times a commit was refused, since another owner had come."
    )
    lag = Family(
        Gauge,
        "coordinator",
        "ductor_lag",
        "Records of an owned partition that are not applied yet.",
        labels=("topic", "partition"),
    )

    held_back_seconds = Family(
        Gauge,
        "coordinator",
        "ductor_held_back_seconds",
        "For how long an open transaction of a producer has held back records of an owned partition; no lag shows them.",
        labels=("topic", "partition"),
    )
    inbound_misfits = Single(
        Gauge,
        "coordinator",
        "ductor_inbound_misfits",
        "Inbound topics that are missing, have too few partitions or may not be described: run partitions may be without an owner.",
    )

    # -- worker --
    worker_attempts = Family(
        Counter,
        "worker",
        "ductor_worker_attempts",
        "Attempts that ended in this worker, by outcome: completed, failed, cancelled, rejected.",
        labels=("queue", "outcome"),
    )
    worker_attempt_seconds = Family(
        Histogram,
        "worker",
        "ductor_worker_attempt_seconds",
        "How long an attempt ran.",
        labels=("queue",),
        buckets=_SLOW,
    )
    queue_wait_seconds = Family(
        Histogram,
        "worker",
        "ductor_queue_wait_seconds",
        "Time from an attempt's dispatch to its start here (two clocks: never below 0).",
        labels=("queue",),
        buckets=_SLOW,
    )
    worker_busy = Family(
        Gauge, "worker", "ductor_worker_busy", "Attempts that run in this worker now.", labels=("queue",)
    )
    worker_slots = Family(
        Gauge, "worker", "ductor_worker_slots", "Attempts that this worker may run at a time.", labels=("queue",)
    )
    worker_slots_lost = Family(
        Gauge,
        "worker",
        "ductor_worker_slots_lost",
        "Slots held by timed-out steps whose thread cannot be ended.",
        labels=("queue",),
    )
    worker_skipped = Family(
        Counter,
        "worker",
        "ductor_worker_skipped",
        "Tasks not run again, since they were done before a restart or rebalance.",
        labels=("queue",),
    )
    worker_stops = Single(Counter, "worker", "ductor_worker_stops", "Attempts that were asked to stop here.")
    heartbeats = Single(Counter, "worker", "ductor_worker_heartbeats", "Heartbeats sent.")
    result_ack_seconds = Single(
        Histogram,
        "worker",
        "ductor_result_ack_seconds",
        "Time from an attempt's end until the broker acknowledged its result.",
        buckets=_FAST,
    )

    def __init__(self, registry: CollectorRegistry | None = None, app: str = "") -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.app = app
        for attribute, declared in declarations():
            self.__dict__[attribute] = declared.live(self.registry, app)


def declarations() -> Iterator[tuple[str, Single[Any] | Family[Any]]]:
    """Every metric with the attribute that it has on ``Metrics``, in the order of declaration."""
    for attribute, value in vars(Metrics).items():
        if isinstance(value, (Single, Family)):
            yield attribute, value


_HEAD = """# Metrics

Every process serves these under `/metrics` on its health port (`--health-port`, `DUCTOR_HEALTH_PORT`).
All of them carry the label `app`, the name given to `App(...)`. Durations are seconds, counters end in `_total`.
This page is generated from the declarations: `python -m ductor_stream.telemetry.metrics > docs/operations/metrics.md`.
"""


def page() -> str:
    """The text of ``docs/operations/metrics.md``."""
    lines = [_HEAD]
    groups: dict[str, list[Single[Any] | Family[Any]]] = {}
    for _, declared in declarations():
        groups.setdefault(declared.group, []).append(declared)
    for group, members in groups.items():
        lines += [f"## {group.capitalize()}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for one in members:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.exposed_name}` | {one.kind.__name__.lower()} | {labels} | {one.meaning} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
