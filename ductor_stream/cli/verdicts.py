"""Why a rule decided so: facts and verdicts out of a run's recorded history. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.state import NodeCreated, Record
from ductor_stream.rules.verdict import Verdict, find_verdict

_SHOWN = 300
"""Characters of a value or of facts in a line for people; JSON has all of them."""


def verdict_line(output: bytes | None) -> str:
    """What an attempt's output says as a verdict, in one line; empty where it is none."""
    found = find_verdict(output)
    return "" if found is None else f"{found.why()} → {_short(found.value)}"


def explained(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """By node id of each rule that was decided: its ``verdict`` with ``why`` in a sentence, and the ``facts``."""
    inputs: dict[str, bytes] = {}
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        match record.event:
            case AttemptFinished(node_id=node_id, outcome="completed", output=output) if node_id in inputs:
                if (verdict := find_verdict(output)) is not None:
                    found[node_id] = _explanation(verdict, inputs[node_id])
            case _:
                pass
        for decision in record.decisions or ():
            if isinstance(decision, NodeCreated) and decision.kind == "step":
                inputs[decision.node_id] = decision.input
    return found


def explained_lines(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """For people, of nodes as ``runs show`` has them."""
    lines = []
    for node in nodes:
        if (verdict := node.get("verdict")) is not None:
            lines.append(f"{node['name']} ({node['node_id']}): {verdict['why']} → {_short(verdict['value'])}")
            lines.append(f"    facts: {_short(node['facts'])}")
    return lines


def _explanation(verdict: Verdict[Any], input: bytes) -> dict[str, Any]:
    facts = msgspec.json.decode(input)
    return {
        "verdict": {**msgspec.to_builtins(verdict), "why": verdict.why()},
        "facts": facts[0] if isinstance(facts, list) and facts else facts,
    }


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
