"""Orders to runs, answers to their tasks by hand, and what became of both: what tests of control share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, get_args

from rig import Rig
from rig_worker import fence

from ductor_stream.engine.events import CommandKind
from ductor_stream.engine.state import decode_records

KINDS = get_args(CommandKind)
ENDS = {"run.completed", "run.failed", "run.cancelled", "run.terminated", "run.timed_out"}


def cells(table: str, states: Iterable[str]) -> dict[str, str]:
    """A table of states by kinds of command, by ``state-kind``: that is the run id too."""
    kinds, *lines = table.strip().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    found = {f"{s}-{k}": e for s, told in rows.items() for k, e in zip(kinds.split(), told, strict=True)}
    assert found.keys() == {f"{state}-{kind}" for state in states for kind in KINDS}
    return found


def order(rig: Rig, run_id: str, kind: str, **fields: Any) -> None:
    """Send a command; its id is its kind, and a reset goes to node 1, if nothing else is said."""
    body = {"type": f"run.{kind}", "run_id": run_id, "command_id": kind}
    rig.send(rig.topics.run_events, run_id, body | ({"to_node": "1"} if kind == "reset" else {}) | fields)


def finish(rig: Rig, task: dict[str, Any], **result: Any) -> None:
    """Answer a task as a worker would: completed with 0, if nothing else is said."""
    body = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 0}
    rig.send(rig.topics.attempt_results, task["run_id"], body | result)


def phases(rig: Rig, run_id: str) -> list[str]:
    """What is recorded of a run's attempts."""
    return [row["phase"] for row in rig.attempts(run_id)]


def ended(rig: Rig) -> Counter[tuple[str, str]]:
    """By run and execution: how many events tell of an end (one that is redriven has the same id)."""
    ends = [id.split("/") for id in {told.id for told in rig.told() if told.type in ENDS}]
    return Counter(("/".join(run_id), execution) for _, *run_id, execution, _ in ends)


def commits(rig: Rig, run_id: str) -> list[list[str]]:
    """The kinds of event of a run's history, commit by commit."""
    query = "select records from eec_workflow_transition where ns = {ns} and run_id = %s order by record_version"
    rows = rig.rows(query, run_id)
    return [[type(record.event).__name__ for record in decode_records(bytes(row["records"]))] for row in rows]
