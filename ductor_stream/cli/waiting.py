"""Why is this run waiting? The engine's sentence, refined by what only Kafka and Postgres know. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from ductor_stream.engine.state import Node, RunState
from ductor_stream.engine.waiting import waiting_for
from ductor_stream.kafka.inspection import QueueFacts
from ductor_stream.store.rows import Beat, PutOff

_SHOWN = 3
"""Nodes that a sentence names, as the engine does; the rest is counted."""


class Surroundings(msgspec.Struct, frozen=True):
    """What is known around a run. What could not be asked is empty, and None is "not known".

    ``beats`` and ``children`` are by node id: what was last heard of an attempt in flight, the status of a child run
    (empty for one that is not there yet). ``queues`` is by queue name, ``coordinators`` how many there are; of groups
    that this principal may not describe nothing is known.
    """

    beats: Mapping[str, Beat] = {}
    queues: Mapping[str, QueueFacts] = {}
    children: Mapping[str, str] = {}
    coordinators: int | None = None
    put_off: PutOff | None = None
    """Inputs of the run that wait in the inbox."""


def named_nodes(state: RunState) -> list[Node]:
    """The nodes that the sentence names: only about these is it worth asking."""
    return list(state.nodes.values())[:_SHOWN] if state.header.status == "running" and not state.held else []


def awaited_queues(state: RunState, beats: Mapping[str, Beat]) -> list[str]:
    """Queues of attempts of which nothing was heard: where to look whether anybody is there."""
    return sorted(
        {
            node.options.queue
            for node in named_nodes(state)
            if node.kind == "step"
            and node.options is not None
            and node.status == "dispatched"
            and not _beats(node, beats)
        }
    )


def why(state: RunState, now: int, around: Surroundings) -> str | None:
    """What the run waits for at ``now`` (ms) in one sentence, or None when it is closed."""
    sentence = waiting_for(state, now)
    if sentence is None:
        return None
    if named := named_nodes(state):
        left = len(state.nodes) - len(named)
        told = [_about(state, node, now, around) for node in named]
        sentence = "; ".join(told) + (f"; and {left} more" if left else "")
    if around.put_off is not None:
        sentence = f"{_inbox(around.put_off)}; {sentence}"
    if around.coordinators == 0:
        return f"no coordinator is up, start one (`ductor-stream coordinator MODULE:APP`); until then: {sentence}"
    return sentence


def _inbox(put_off: PutOff) -> str:
    until = f" until {_moment(put_off.until)}" if put_off.until is not None else ""
    wait = f"{put_off.inputs} input(s) wait in the inbox{until}"
    if put_off.tries:
        return f"{wait}: something else writes its row, version checks were lost in {put_off.tries} round(s)"
    return f"{wait}: another session keeps its row locked, or they need another release"


def _about(state: RunState, node: Node, now: int, around: Surroundings) -> str:
    """The engine's words on one node, and what is known beyond."""
    alone = RunState(state.header, {node.node_id: node})
    base = waiting_for(alone, now) or ""
    refine = _REFINED.get((node.kind, node.status))
    return refine(base, node, around) if refine is not None else base


def _dispatched(base: str, node: Node, around: Surroundings) -> str:
    beat = _beats(node, around.beats)
    if beat is not None:
        since, latest = _moment(beat.heard_at), _moment(beat.beat_at)
        place = f" on {beat.worker}" if beat.worker else ""  # a worker of somebody else's need not say who it is
        return (
            f"step {node.name}, attempt {node.attempt}, running since {since}{place}, "
            f"last heard of at {latest} (node {node.node_id})"
        )
    queue = node.options.queue if node.options is not None else ""
    known = around.queues.get(queue)
    if known is None:
        return base
    if not known.consumers:
        start = f"`ductor-stream worker MODULE:APP --queue {queue}`"
        return f"{base}; no consumer on queue {queue} ({known.waiting} task(s) wait), start one: {start}"
    if known.waiting:
        return f"{base}; {known.waiting} task(s) wait on queue {queue} for {known.consumers} consumer(s)"
    return f"{base}; taken by one of {known.consumers} consumer(s) on queue {queue}, nothing heard of it yet"


def _beats(node: Node, beats: Mapping[str, Beat]) -> Beat | None:
    beat = beats.get(node.node_id)
    return beat if beat is not None and beat.generation == node.generation else None


def _child(base: str, node: Node, around: Surroundings) -> str:
    status = around.children.get(node.node_id)
    if status is None:
        return base
    return f"{base}; it is {status}" if status else f"{base}; it has not begun yet"


_REFINED: Mapping[tuple[str, str], Callable[[str, Node, Surroundings], str]] = {
    ("step", "dispatched"): _dispatched,
    ("child", "waiting"): _child,
}


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
