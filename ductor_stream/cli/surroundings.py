"""Asking Kafka and Postgres what is around a run that waits. What does not answer is left out: the run is shown anyway."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ductor_stream.cli.waiting import Surroundings, awaited_queues, named_nodes
from ductor_stream.config import Settings
from ductor_stream.engine.state import RunState
from ductor_stream.errors import DuctorError
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import Beat, PutOff, RunRow

_ANSWER_S = 3.0
"""For each question to Kafka: somebody waits for the table."""


def surroundings(
    reader: RunReader, row: RunRow, state: RunState, beats: Mapping[str, Beat], settings: Settings
) -> Surroundings:
    """What is known around the run. Raises StoreUnavailable; without Kafka its part is empty."""
    children = {
        node.node_id: child.status if (child := reader.find_run(node.child.run_id)) is not None else ""
        for node in named_nodes(state)
        if node.child is not None
    }
    found = Surroundings(beats=beats, children=children, put_off=None if state.closed else _put_off(reader, row))
    if state.closed or not settings.kafka_bootstrap or settings.namespace is None:
        return found
    # The driver is loaded only where there is something to ask.
    from ductor_stream.kafka.inspection import inspect_members, inspect_queues
    from ductor_stream.kafka.topics import AdminConfig

    try:
        topics: Topics = settings.topics(settings.namespace)
        config = AdminConfig(
            bootstrap=settings.kafka_bootstrap, topics=topics, options=settings.kafka, timeout=_ANSWER_S
        )
        coordinators = inspect_members(config, topics.coordinator_group)
        queues = inspect_queues(config, awaited_queues(state, beats))
    except DuctorError:
        return found
    return msgspec.structs.replace(found, coordinators=coordinators, queues=queues)


def _put_off(reader: RunReader, row: RunRow) -> PutOff | None:
    try:
        return reader.put_off(row)
    except DuctorError:
        return None  # a role that an older release's `schema grants` gave its rights may not look there
