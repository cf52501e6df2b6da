"""What a coordinator sends: tasks, stops, lifecycle events, wakeups, dead letters."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle, StopAttempt
from ductor_stream.engine.definition import StepOptions
from ductor_stream.engine.ids import idempotency_key, partition_of
from ductor_stream.engine.state import Node
from ductor_stream.errors import InvariantViolation
from ductor_stream.ports import Outgoing
from ductor_stream.protocol import headers, lifecycle, messages
from ductor_stream.protocol.failures import clean
from ductor_stream.protocol.limits import MAX_CONTEXT_BYTES, MAX_LETTER_KEY_BYTES, MAX_REASON
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.times import rfc3339
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.writing import Format, Writer


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that cannot be applied, and why. ``topic`` is its full name; ``key`` and ``value`` as they came.

    ``reference`` is the id in ``eec_payload`` of a value that would not fit; the letter then has no value.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str
    error: str
    reference: str | None = None
    headers: headers.Headers = ()


class Encoder:
    """Encodes the coordinator's messages. ``format`` holds for all but dead letters, which are what they were.

    Raises InvalidConfig for a format that needs a registry where there is none; with one, the first message of each
    type raises TransientError while the registry is away.
    """

    def __init__(self, topics: Topics, *, format: Format = "json", registry: SchemaRegistry | None = None) -> None:
        self._topics = topics
        self._writer = Writer(format, registry)
        self._results = topics.attempt_results

    def task(
        self, run_id: str, context: Mapping[str, str], action: DispatchAttempt, now_ms: int, partitions: int | None
    ) -> Outgoing:
        """A task for the node's queue. It is spread by the whole fence's node, so that a fan-out uses the whole fleet.

        ``partitions`` is the number of the queue's topic; None (not known yet) lets the key decide.
        """
        node = action.node
        if node.options is None:
            raise InvariantViolation(f"run {run_id}: node {node.node_id} of kind {node.kind} cannot be dispatched")
        return Outgoing(
            self._topics.tasks(node.options.queue),
            run_id.encode(),
            self._writer.write(self._task(run_id, action.execution, node, node.options, now_ms)),
            headers.wire_headers(context),
            task_partition(run_id, action.execution, node.node_id, partitions),
        )

    def _task(self, run_id: str, execution: int, node: Node, options: StepOptions, now_ms: int) -> messages.Task:
        closes = options.schedule_to_close_ms
        return messages.Task(
            run_id=run_id,
            execution=execution,
            node_id=node.node_id,
            generation=node.generation,
            attempt=node.attempt,
            step=node.name,
            input=Raw(node.input or b"[]"),
            idempotency_key=idempotency_key(
                self._topics.namespace, run_id, node.key_execution or execution, node.node_id
            ),
            dispatched_at=rfc3339(now_ms),
            start_to_close_ms=options.start_to_close_ms,
            schedule_to_start_ms=options.schedule_to_start_ms,
            deadline_at=None if closes is None else rfc3339(node.created_at + closes),
            heartbeat_timeout_ms=options.silence_ms,
            heartbeat_details=Raw(node.details or b"null"),
            results_topic=self._results,
        )

    def stop(self, run_id: str, action: StopAttempt) -> Outgoing:
        """Tell whoever runs the attempt to stop (best effort)."""
        node = action.node
        message = messages.AttemptStop(
            run_id=run_id,
            execution=action.execution,
            node_id=node.node_id,
            generation=node.generation,
            reason=clean(action.reason, MAX_REASON) or None,
        )
        return self._record(self._topics.attempt_control, run_id, message)

    def lifecycle(
        self, run_id: str, workflow: str, version: str, action: EmitLifecycle, record_version: int
    ) -> Outgoing:
        """A CloudEvent about the run, ``record_version`` being that of the commit that it tells of."""
        return Outgoing(
            self._topics.run_lifecycle,
            run_id.encode(),
            lifecycle.event_data(self._writer, run_id, workflow, version, action, record_version),
            lifecycle.event_headers(
                self._topics.namespace, self._topics.event_source, run_id, action, self._writer.content_type
            ),
        )

    def wakeup(self, run_id: str) -> Outgoing:
        """A hint to the run's owner; the message itself is an inbox row."""
        return self._record(self._topics.wakeups, run_id, messages.Wakeup(run_id=run_id))

    def dead_letter(self, letter: DeadLetter) -> Outgoing:
        """The original bytes with the reason. A null key and a null value are told from empty ones by a header.

        A letter of a value of at most ``MAX_RECORD_BYTES`` always fits the broker's default.
        """
        marks = [
            (headers.REASON, letter.reason.encode("utf-8", "replace")),
            (headers.ERROR, clean(letter.error, MAX_REASON).encode("utf-8", "replace")),
            (headers.SOURCE_TOPIC, letter.topic.encode()),
            (headers.SOURCE_PARTITION, str(letter.partition).encode()),
            (headers.SOURCE_OFFSET, str(letter.offset).encode()),
        ]
        key = letter.key or b""
        if letter.key is None:
            marks.append((headers.NULL_KEY, b"1"))
        elif len(key) > MAX_LETTER_KEY_BYTES:
            # It is no run id, and whole it could make a letter that no broker takes: a dead letter must not fail.
            marks.append((headers.CUT_KEY, str(len(key)).encode()))
            key = key[:MAX_LETTER_KEY_BYTES]
        if letter.reference is not None:
            marks.append((headers.REFERENCE, letter.reference.encode()))
        elif letter.value is None:
            marks.append((headers.NULL_VALUE, b"1"))
        value = b"" if letter.reference is not None else letter.value or b""
        return Outgoing(self._topics.dead_letters, key, value, _original(letter.headers) + marks)

    def _record(self, topic: str, run_id: str, message: messages.WireMessage) -> Outgoing:
        return Outgoing(topic, run_id.encode(), self._writer.write(message), headers.wire_headers())


def task_partition(run_id: str, execution: int, node_id: str, partitions: int | None) -> int | None:
    """The partition of a task, or None where the number of partitions is not known."""
    return partition_of(f"{run_id}/{execution}/{node_id}".encode(), partitions) if partitions else None


_OURS = frozenset(
    {
        headers.REASON,
        headers.ERROR,
        headers.SOURCE_TOPIC,
        headers.SOURCE_PARTITION,
        headers.SOURCE_OFFSET,
        headers.REFERENCE,
        headers.NULL_KEY,
        headers.NULL_VALUE,
        headers.CUT_KEY,
    }
)


def _original(found: headers.Headers) -> list[tuple[str, bytes]]:
    """The record's own headers, for a replay; none where they are so large that the letter might not fit."""
    kept = [(name, value) for name, value in found if value is not None and name not in _OURS]
    size = sum(len(name) + len(value) for name, value in kept)
    return kept if size <= 2 * MAX_CONTEXT_BYTES else []
