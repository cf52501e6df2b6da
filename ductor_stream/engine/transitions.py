"""Status by trigger: the only place where a run's status changes. What is not in the table is refused."""

from __future__ import annotations

from typing import Literal

from ductor_stream.engine.state import Status

Trigger = Literal["park", "resume", "pause", "complete", "fail", "cancel", "terminate", "time_out"]

TABLE: dict[tuple[Status, Trigger], Status] = {
    ("running", "park"): "suspended",
    ("running", "pause"): "paused",
    ("running", "complete"): "completed",
    ("running", "fail"): "failed",
    ("running", "cancel"): "cancelled",
    ("running", "terminate"): "terminated",
    ("running", "time_out"): "timed_out",
    ("suspended", "resume"): "running",
    ("suspended", "pause"): "paused",
    ("suspended", "fail"): "failed",
    ("suspended", "terminate"): "terminated",
    ("suspended", "time_out"): "timed_out",
    ("paused", "resume"): "running",
    ("paused", "fail"): "failed",
    ("paused", "terminate"): "terminated",
    ("paused", "time_out"): "timed_out",
}


def moved(status: Status, trigger: Trigger) -> Status | None:
    """The status after the trigger, or None where the trigger does not apply. Terminal states are final."""
    return TABLE.get((status, trigger))
