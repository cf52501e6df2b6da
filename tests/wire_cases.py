"""One record of each kind of message in each form, as this release writes them.

``python tests/wire_cases.py`` writes the files in ``tests/golden/wire/`` anew. Do so only for messages that are
new: what a release has written stays on topics, so a changed file is a changed contract.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Raw

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle, StopAttempt
from ductor_stream.engine.definition import StepOptions
from ductor_stream.engine.events import AttemptFinished, CommandReceived, Failure, RunStarted, SignalReceived
from ductor_stream.engine.state import Node
from ductor_stream.ports import Outgoing
from ductor_stream.protocol import avro, messages
from ductor_stream.protocol.outbound import DeadLetter, Encoder
from ductor_stream.protocol.requests import RequestEncoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import Task, WorkerCodec
from ductor_stream.protocol.writing import FORMATS, Format, Writer

GOLDEN = Path(__file__).parent / "golden" / "wire"
TOPICS = Topics("shop")
RUN_ID = "order-42/ü"
NOW = 1_793_534_400_123  # 2026-11-01T12:00:00.123Z
CONTEXT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ductor-ctx-tenant": "köln"}
FAILURE = Failure(
    "user", "CardDeclined", "card declined", retryable=False, retry_after_ms=5_000, details=b'{"bank":"b-7"}', stack="…"
)
NODE = Node(
    "0.3",
    "step",
    "charge",
    "dispatched",
    NOW,
    b'[{"id":"order-42","total":"12.50"}]',
    StepOptions(queue="payments", schedule_to_start_ms=60_000, schedule_to_close_ms=90_000, heartbeat_ms=5_000),
    generation=2,
    attempt=2,
)
PLAIN_NODE = Node("3", "step", "reserve", "dispatched", NOW, b'["sku-1"]', StepOptions())
TIMES = {"started_at": "2026-11-01T12:00:00.200Z", "finished_at": "2026-11-01T12:00:00.300Z"}


class FixedRegistry:
    """A registry whose ids follow from the subject, so that golden bytes do not depend on an order."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.asked = 0
        for form in avro.catalog():
            self.schema_id(form.name, form.text)

    def schema_text(self, schema_id: int) -> str | None:
        self.asked += 1
        return self.texts.get(schema_id)

    def schema_id(self, subject: str, schema_text: str) -> int:
        found = zlib.crc32(subject.encode())
        self.texts[found] = schema_text
        return found


def task(node: Node = NODE) -> Task:
    """A task as a worker has it, decoded from its JSON."""
    record = Encoder(TOPICS).task(RUN_ID, CONTEXT, DispatchAttempt(1, node), NOW, 12)
    return WorkerCodec().decode_task(record.key, record.value, record.headers)


def _requests(format: Format, registry: FixedRegistry) -> dict[str, Callable[[], Outgoing]]:
    client = RequestEncoder(TOPICS, format=format, registry=registry)
    full = RunStarted("fulfil", "1", b'{"id":"order-42"}', "s1", "restart_if_failed", 60_000, CONTEXT)
    commands = {
        f"run.{kind}": CommandReceived(kind, "c1", "customer asked", "0.3" if kind == "reset" else None)  # type: ignore[arg-type]
        for kind in ("cancel", "terminate", "pause", "resume", "retry", "reset")
    }
    commands["run.reset-transition"] = CommandReceived("reset", "c2", to_transition=7)
    events = {
        "run.start": RunStarted("fulfil", "", b"null", ""),
        "run.start-full": full,
        "run.signal": SignalReceived("a7", "approved", b"true"),
        **commands,
    }
    return {name: lambda event=event: client.encode(RUN_ID, event) for name, event in events.items()}  # type: ignore[misc]


def _results(format: Format, registry: FixedRegistry) -> dict[str, Callable[[], Outgoing]]:
    codec = WorkerCodec(format, registry)
    done = AttemptFinished(1, "0.3", 2, "completed", b'{"receipt":"r-77"}', None, "host-1", **TIMES)
    failed = AttemptFinished(1, "0.3", 2, "failed", None, FAILURE, "host-1", **TIMES)
    rejected = AttemptFinished(1, "0.3", 2, "rejected", None, Failure("step_unknown", "Rejected", "no step charge"))
    return {
        "attempt.finished-completed": lambda: codec.encode_finished(task(), done),
        "attempt.finished-failed": lambda: codec.encode_finished(task(), failed),
        "attempt.finished-rejected": lambda: codec.encode_finished(task(), rejected),
        "attempt.finished-cancelled": lambda: codec.encode_finished(task(), AttemptFinished(1, "0.3", 2, "cancelled")),
        "attempt.heartbeat": lambda: codec.encode_heartbeat(task(), "host-1", TIMES["started_at"], b'{"page":17}'),
    }


def _coordinator(format: Format, registry: FixedRegistry) -> dict[str, Callable[[], Outgoing]]:
    encoder = Encoder(TOPICS, format=format, registry=registry)
    return {
        "task": lambda: encoder.task(RUN_ID, {}, DispatchAttempt(1, PLAIN_NODE), NOW, 12),
        "task-full": lambda: encoder.task(RUN_ID, CONTEXT, DispatchAttempt(1, NODE), NOW, 12),
        "attempt.stop": lambda: encoder.stop(RUN_ID, StopAttempt(1, NODE, "run cancelled")),
        "wakeup": lambda: encoder.wakeup(RUN_ID),
    }


def _lifecycle(format: Format, registry: FixedRegistry) -> dict[str, Callable[[], Outgoing]]:
    encoder = Encoder(TOPICS, format=format, registry=registry)

    def event(action: EmitLifecycle) -> Outgoing:
        return encoder.lifecycle(RUN_ID, "fulfil", "1", action, 9)

    return {
        "lifecycle-started": lambda: event(EmitLifecycle("run.started", 1, 1, NOW)),
        "lifecycle-completed": lambda: event(EmitLifecycle("run.completed", 1, 2, NOW, result=b'"r-77"')),
        "lifecycle-failed": lambda: event(EmitLifecycle("run.failed", 1, 2, NOW, failure=FAILURE)),
        "lifecycle-suspended": lambda: event(EmitLifecycle("run.suspended", 1, 2, NOW, reason="bug: KeyError")),
        "lifecycle-contended": lambda: event(
            EmitLifecycle("run.contended", 1, 1, NOW, reason="2 input(s) waited", about="contended-9", status="running")
        ),
        "lifecycle-command.rejected": lambda: event(
            EmitLifecycle("command.rejected", 1, 3, NOW, reason="run_closed", about="c1")
        ),
        "lifecycle-start.rejected": lambda: event(
            EmitLifecycle("command.rejected", 1, 3, NOW, reason="run_exists", about="s1")
        ),
        "lifecycle-start.answered": lambda: event(
            EmitLifecycle("start.answered", 1, 2, NOW, result=b'"r-77"', about="s3", status="completed")
        ),
        "lifecycle-start.answered-refused": lambda: event(
            EmitLifecycle("start.answered", 1, 3, NOW, reason="run_exists", about="s1", status="rejected")
        ),
    }


def _one_form() -> dict[str, Callable[[], Outgoing]]:
    encoder = Encoder(TOPICS)
    letter = DeadLetter(
        "ductor.shop.run-events", 3, 17, b"order-42", b"{", "undecodable", "malformed JSON", headers=[("k", b"v")]
    )
    nothing = DeadLetter("ductor.shop.run-events", 3, 18, None, None, "null_key", "no key")
    stored = msgspec.structs.replace(letter, reference="p-1")
    return {
        "dead-letter": lambda: encoder.dead_letter(letter),
        "dead-letter-null": lambda: encoder.dead_letter(nothing),
        "dead-letter-stored": lambda: encoder.dead_letter(stored),
    }


def _with_memo(format: Format, registry: FixedRegistry) -> Outgoing:
    start = messages.RunStart(run_id=RUN_ID, workflow="fulfil", memo=Raw(b'{"why":"test"}'), search=Raw(b'{"n":1}'))
    return Outgoing(TOPICS.run_events, RUN_ID.encode(), Writer(format, registry).write(start))


def records() -> Iterator[tuple[str, Outgoing]]:
    """All records, named ``<case>.<format>``."""
    for format in FORMATS:
        registry = FixedRegistry()
        for group in (_requests, _results, _coordinator, _lifecycle):
            for name, make in group(format, registry).items():
                yield f"{name}.{format}", make()
        yield f"run.start-memo.{format}", _with_memo(format, registry)
    for name, make in _one_form().items():
        yield f"{name}.json", make()


def described(record: Outgoing) -> dict[str, object]:
    """All of a record but its value, in a form that can be read."""
    found = {name: value.decode() for name, value in record.headers}
    return {"topic": record.topic, "key": record.key.decode(), "partition": record.partition, "headers": found}


def _write() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {}
    for name, record in records():
        (GOLDEN / name).write_bytes(record.value)
        about[name] = described(record)
    lines = msgspec.json.format(msgspec.json.encode(about, order="sorted"), indent=1)
    (GOLDEN / "records.json").write_bytes(lines + b"\n")


if __name__ == "__main__":
    _write()
