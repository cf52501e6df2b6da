"""What a turn has to commit, and what it does once that has landed."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.cache import Cached
from ductor_stream.coordinator.heartbeats import Heard
from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.ids import Fence
from ductor_stream.engine.planners import LogLine
from ductor_stream.ports import Batch, Outgoing


class Prepared(msgspec.Struct):
    """A batch ready to commit, and what follows from it once it has landed."""

    batch: Batch = msgspec.field(default_factory=Batch)
    records: dict[int, list[Outgoing]] = {}
    sync: dict[int, dict[Fence, Outgoing]] = {}
    reserved: list[str] = []
    kept: dict[str, Cached] = {}
    """Run id -> the run as committed."""
    discharged: list[Fence] = []
    heard: list[Heard] = []
    ended: list[tuple[str, int, str]] = []
    lifecycles: list[tuple[str, str, EmitLifecycle]] = []
    """(run id, workflow, event) of what is published."""
    lines: dict[str, list[LogLine]] = {}
    """Run id -> what its code has logged."""
    events: int = 0
