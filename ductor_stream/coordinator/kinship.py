"""What runs have for each other: starts, commands and outcomes, as inbox rows of the other run's home (protocol 8)."""

from __future__ import annotations

from collections.abc import Mapping

from ductor_stream.engine.actions import CommandChild, StartChild, TellParent
from ductor_stream.engine.events import AnyEvent, CommandReceived, Parent, RunStarted
from ductor_stream.engine.ids import partition_of
from ductor_stream.ports import InboxRow
from ductor_stream.protocol.inbox import encode_event


def row_for(
    run_id: str, action: StartChild | CommandChild | TellParent, partitions: int, context: Mapping[str, str]
) -> tuple[str, InboxRow]:
    """The run that is meant, and the row for its home partition. Written in the sender's transaction, applied once.

    ``context`` is what the sender carries along from its own start: a child carries the same.
    """
    match action:
        case TellParent(parent, execution, event):
            about = f"told/{run_id}/{execution}/{parent.execution}/{parent.node_id}"
            return parent.run_id, _row(about, parent.run_id, event, partitions)
        case StartChild(execution, node, since=since):
            assert node.child is not None
            awaiting = None if node.child.detached else Parent(run_id, execution, node.node_id)
            about = f"start/{run_id}/{execution}/{node.node_id}"
            carried = dict(context)
            asked = (node.name, node.child.version, node.input, about, action.on_conflict)
            start = RunStarted(*asked, context=carried, parent=awaiting, since=since)
            return node.child.run_id, _row(about, node.child.run_id, start, partitions)
        case CommandChild(execution, node, kind, reason):
            assert node.child is not None
            about = f"{kind}/{run_id}/{execution}/{node.node_id}"
            command = CommandReceived(kind, about, reason, parent=Parent(run_id, execution, node.node_id))
            return node.child.run_id, _row(about, node.child.run_id, command, partitions)


def _row(about: str, run_id: str, event: AnyEvent, partitions: int) -> InboxRow:
    return InboxRow(partition_of(run_id.encode(), partitions), about, "engine", encode_event(run_id, event))
