"""Bugs written by somebody who had not seen the checkers, nor the simulation: changes of a few lines each.

``BLIND`` maps a name to a context manager, as ``bugs.BUGS`` does.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

from ductor_stream.coordinator.commit import Committer
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.intake import Intake
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.coordinator.timers import Timers
from ductor_stream.engine.reduce import child, start
from ductor_stream.worker.deliveries import TopicDelivery
from ductor_stream.worker.ledger import Ledger

BLIND: dict[str, Callable[[], AbstractContextManager[None]]] = {}


def _changed(function: FunctionType, old: str, new: str) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function))
    old, new = textwrap.dedent(old).strip("\n"), textwrap.dedent(new).strip("\n")
    lines = source.splitlines()
    sought = old.splitlines()
    for at in range(len(lines)):
        block = lines[at : at + len(sought)]
        if [line.strip() for line in block] == [line.strip() for line in sought]:
            indent = " " * (len(block[0]) - len(block[0].lstrip()))
            lines[at : at + len(sought)] = textwrap.indent(new, indent).splitlines()
            break
    else:
        raise LookupError(f"{function.__qualname__} has changed: bring the bug up to date")
    made: dict[str, Any] = {}
    exec(compile("\n".join(lines), inspect.getfile(function), "exec"), function.__globals__, made)  # noqa: S102 - ours
    found = made[function.__name__]
    return found.fget if isinstance(found, property) else found  # type: ignore[no-any-return]


def _blind(name: str, function: Any, old: str, new: str) -> None:
    """While it is open, these lines of the function are others, for everybody who calls it."""

    @contextmanager
    def opened() -> Iterator[None]:
        before = function.__code__
        function.__code__ = _changed(function, old, new).__code__
        try:
            yield
        finally:
            function.__code__ = before

    BLIND[name] = opened


_blind(
    "confirmed_over_a_gap",
    Dispatcher.confirmed,
    """
    if not (row.acknowledged and row.sync <= discharged):
        break
    found = row.seq
    """,
    """
    if row.acknowledged and row.sync <= discharged:
        found = row.seq
    """,
)
_blind(
    "timers_remembered_after_close",
    Timers.close,
    """
    for _, partition, run_id in self._heap:
        if partition in gone:
            self._scheduled.pop(run_id, None)
    """,
    "",
)
_blind(
    "only_fenced_partitions_retaken",
    Coordinator.guarded_turn,
    """
    # All of them: who has lost one without being told has perhaps lost the others too.
    self.ownership.retake(list(self.ownership.owned), fenced=True)
    """,
    "self.ownership.retake(error.partitions, fenced=True)",
)
_blind(
    "winners_keep_coroutines_after_a_conflict",
    Coordinator.advance,
    """
    self.forget(prepared)
    conflict.lost(lost)
    """,
    """
    self.cache.drop(lost.run_ids)
    self.committer.cancel(prepared)
    conflict.lost(lost)
    """,
)
_blind(
    "wake_at_of_a_wide_run_after_reload",
    Committer._wake,
    """
    if len(state.nodes) <= _EXACT_NODES or before is None or one.before.state is None:
        return wake_at(state)
    return min(before, soonest) if soonest is not None else before
    """,
    """
    if len(state.nodes) <= _EXACT_NODES or one.before.state is None:
        return wake_at(state)
    return min((at for at in (before, soonest) if at is not None), default=None)
    """,
)
_blind(
    "identity_by_topic_name",
    Intake._take_record,
    'topic_id = mine.topic_ids.get(self._inbound[index], "")',
    "topic_id = self._inbound[index]",
)
_blind(
    "unfenced_commit_of_own_inputs",
    Committer._prepare,
    "concerned = work.partitions() | prepared.records.keys()",
    """
    concerned = work.positions.keys() | work.touched | prepared.records.keys()
    concerned |= {partition for partition, _ in work.consumed} | {row.partition for row in work.handed}
    """,
)
_blind(
    "passed_when_once_heard",
    vars(TopicDelivery)["passes"].fget,
    "return self.runs and self._heard",
    "return self._heard",
)
_blind(
    "ledger_finishes_in_another_window",
    Ledger.done,
    """
    place.window.finish(place.offset)
    self._under_way.pop(place, None)
    if self._windows.get(place.partition) is place.window:
        self._dirty.add(place.partition)
    """,
    """
    self._under_way.pop(place, None)
    window = self._windows.get(place.partition)
    if window is not None:
        window.finish(place.offset)
        self._dirty.add(place.partition)
    """,
)
_blind(
    "unheard_cancel_dropped_on_continue",
    start.next_execution,
    """
    state.signals = [SignalArrived(s.signal_id, s.name, s.payload) for s in event.signals]
    state.held = [Held(now, Begun()), *(Held(now, signal) for signal in state.signals)]
    if event.cancel_requested:
        state.header.cancel_requested = True
        state.held.append(Held(now, CancelRequested("asked before the run continued as new")))
    """,
    """
    if event.cancel_requested:
        state.header.cancel_requested = True
        state.held.append(Held(now, CancelRequested("asked before the run continued as new")))
    state.signals = [SignalArrived(s.signal_id, s.name, s.payload) for s in event.signals]
    state.held = [Held(now, Begun()), *(Held(now, signal) for signal in state.signals)]
    """,
)
_blind(
    "outcome_of_a_former_executions_child",
    child.finished,
    """
        if node is None or node.child is None or event.execution != draft.header.execution:
            return None
        if event.child_run_id != node.child.run_id:
    """,
    "if node is None or node.child is None:",
)
