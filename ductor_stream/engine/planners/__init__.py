"""The second half of a tick: what next. Only this half knows the kind of a definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.state import AnyDecision, Header, Held, Parked

LogLine = tuple[str, str, dict[str, object]]
"""Level, message, fields of a line that a workflow has logged."""


class Live(Protocol):
    """A workflow under way in memory: the memo of a replay, bound to the state it was fed up to (protocol 17)."""

    def feed(self, facts: Sequence[Held], expected: Sequence[AnyDecision] | None = None) -> list[AnyDecision] | Parked:
        """Tell the workflow facts, one at a time, and hear its decisions.

        With ``expected`` (replay) a decision that differs from the recorded one gives Parked with both sides.
        """

    def abandon(self) -> None:
        """Drop the workflow without any of its code having an effect."""

    def lines(self) -> list[LogLine]:
        """Log lines written since the last call; none in replay."""


def start_live(definition: WorkflowDefinition, header: Header, reset_in: int) -> Live:
    """A workflow of that definition that has not been fed anything yet. ``reset_in``: see ``fork.reset_in``."""
    from ductor_stream.engine.planners.function import FunctionLive

    return FunctionLive(definition, header, reset_in)
