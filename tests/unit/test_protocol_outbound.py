"""What coordinators send: tasks, stops, lifecycle events, wakeups, dead letters."""

from __future__ import annotations

import collections
import json
from typing import Any, get_args

import msgspec
import pytest
from wire_cases import CONTEXT, FAILURE, NODE, NOW, PLAIN_NODE, RUN_ID, TOPICS, FixedRegistry

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle, LifecycleType, StopAttempt
from ductor_stream.engine.events import Failure
from ductor_stream.engine.ids import partition_of
from ductor_stream.engine.state import Node
from ductor_stream.errors import DataError, InvalidConfig, InvariantViolation
from ductor_stream.ports import Received
from ductor_stream.protocol import inbox, lifecycle, limits
from ductor_stream.protocol.outbound import DeadLetter, Encoder
from ductor_stream.protocol.times import milliseconds, rfc3339
from ductor_stream.protocol.writing import FORMATS, Format

ENCODER = Encoder(TOPICS)
LETTER = DeadLetter("ductor.shop.run-events", 3, 17, b"k", b"\xff{", "undecodable", "malformed JSON")


def lifecycle_event(action: EmitLifecycle) -> lifecycle.LifecycleEvent:
    record = ENCODER.lifecycle(RUN_ID, "fulfil", "1", action, 9)
    assert len(record.value) <= limits.MAX_RECORD_BYTES
    return lifecycle.decode_lifecycle(record.key, record.value, record.headers)


def test_a_task_has_exactly_the_fields_of_the_contract() -> None:
    record = ENCODER.task(RUN_ID, CONTEXT, DispatchAttempt(1, NODE), NOW, 12)
    assert json.loads(record.value) == {
        "type": "task",
        "run_id": RUN_ID,
        "execution": 1,
        "node_id": "0.3",
        "generation": 2,
        "attempt": 2,
        "step": "charge",
        "input": [{"id": "order-42", "total": "12.50"}],
        "idempotency_key": "shop/order-42%2Fü/1/0.3",
        "dispatched_at": "2026-11-01T12:00:00.123Z",
        "start_to_close_ms": 600_000,
        "schedule_to_start_ms": 60_000,
        "deadline_at": "2026-11-01T12:01:30.123Z",
        "heartbeat_timeout_ms": 5_000,
        "heartbeat_details": None,
        "requires": [],
        "results_topic": "ductor.shop.attempt-results",
    }
    assert record.topic == "ductor.shop.tasks.payments"
    assert record.key == RUN_ID.encode()
    assert record.headers == [("ductor-wire", b"1"), *((name, value.encode()) for name, value in CONTEXT.items())]


def test_the_worker_beats_by_itself_where_the_step_has_no_heartbeat() -> None:
    body = json.loads(ENCODER.task(RUN_ID, {}, DispatchAttempt(1, PLAIN_NODE), NOW, None).value)
    assert body["heartbeat_timeout_ms"] == 10_000
    assert body["schedule_to_start_ms"] is None and body["deadline_at"] is None


def test_tasks_are_spread_by_node_and_keep_their_key() -> None:
    seen: collections.Counter[int | None] = collections.Counter()
    for number in range(1_000):
        node = msgspec.structs.replace(PLAIN_NODE, node_id=f"0.{number}")
        record = ENCODER.task("order-42", {}, DispatchAttempt(1, node), NOW, 8)
        assert record.key == b"order-42"
        assert record.partition == partition_of(f"order-42/1/0.{number}".encode(), 8)
        seen[record.partition] += 1
    assert set(seen) == set(range(8)) and min(seen.values()) > 80


def test_without_a_partition_count_the_key_decides() -> None:
    assert ENCODER.task("r", {}, DispatchAttempt(1, PLAIN_NODE), NOW, None).partition is None


def test_a_node_that_is_no_step_cannot_be_dispatched() -> None:
    timer = Node("1", "timer", "sleep", "waiting", NOW)
    with pytest.raises(InvariantViolation, match="timer"):
        ENCODER.task("r", {}, DispatchAttempt(1, timer), NOW, None)


def test_a_stop_names_the_attempt() -> None:
    record = ENCODER.stop(RUN_ID, StopAttempt(1, NODE, "run cancelled"))
    assert record.topic == TOPICS.attempt_control
    assert json.loads(record.value) == {
        "type": "attempt.stop",
        "run_id": RUN_ID,
        "execution": 1,
        "node_id": "0.3",
        "generation": 2,
        "reason": "run cancelled",
    }


def test_a_wakeup_is_only_a_hint() -> None:
    record = ENCODER.wakeup(RUN_ID)
    assert (record.topic, record.key) == (TOPICS.wakeups, RUN_ID.encode())
    assert json.loads(record.value) == {"type": "wakeup", "run_id": RUN_ID}


# -- lifecycle ------------------------------------------------------------------------------


def test_a_lifecycle_event_is_a_cloud_event_in_binary_mode() -> None:
    record = ENCODER.lifecycle(RUN_ID, "fulfil", "1", EmitLifecycle("run.completed", 2, 7, NOW, result=b'"r-77"'), 9)
    assert record.topic == TOPICS.run_lifecycle and record.key == RUN_ID.encode()
    assert dict(record.headers) == {
        "ductor-wire": b"1",
        "ce_specversion": b"1.0",
        "ce_id": f"shop/{RUN_ID}/2/7".encode(),
        "ce_source": b"/ductor/shop",
        "ce_type": b"ductor.run.completed",
        "ce_subject": RUN_ID.encode(),
        "ce_time": b"2026-11-01T12:00:00.123Z",
        "content-type": b"application/json",
    }
    assert json.loads(record.value) == {
        "run_id": RUN_ID,
        "execution": 2,
        "workflow": "fulfil",
        "version": "1",
        "seq": 7,
        "record_version": 9,
        "status": "completed",
        "result": "r-77",
    }


@pytest.mark.parametrize("type", get_args(LifecycleType))
def test_every_lifecycle_event_can_be_read_by_a_client(type: LifecycleType) -> None:
    rejected, ended = (
        type == "command.rejected",
        {"start.answered": "completed", "run.contended": "running"}.get(type, ""),
    )
    reason, about = "run_closed" if rejected else "because", "c1" if rejected else ""
    action = EmitLifecycle(type, 1, 3, NOW, reason=reason, about=about, status=ended)
    found = lifecycle_event(action)
    assert (found.type, found.seq, found.record_version, found.time) == (type, 3, 9, "2026-11-01T12:00:00.123Z")
    assert (found.reason, found.code, found.about) == (("", "run_closed", "c1") if rejected else ("because", "", ""))
    assert (found.status is None) == rejected


def test_a_refused_start_is_told_by_its_start_id() -> None:
    action = EmitLifecycle("command.rejected", 1, 3, NOW, reason="run_exists", about="s1")
    data = json.loads(ENCODER.lifecycle(RUN_ID, "fulfil", "1", action, 9).value)
    assert (data["start_id"], data["code"]) == ("s1", "run_exists")
    assert "command_id" not in data and "status" not in data


def test_an_answered_start_hears_how_the_run_has_ended() -> None:
    """Beside the last event that counts, whose number it repeats: it has another id."""
    action = EmitLifecycle("start.answered", 2, 7, NOW, failure=FAILURE, about="s3", status="failed")
    record = ENCODER.lifecycle(RUN_ID, "fulfil", "1", action, 9)
    assert dict(record.headers)["ce_id"] == f"{TOPICS.namespace}/{RUN_ID}/2/7/s3".encode()
    found = lifecycle_event(action)
    assert (found.execution, found.seq, found.status, found.error, found.about) == (2, 7, "failed", FAILURE, "s3")


def test_a_contended_run_is_told_beside_the_events_that_count() -> None:
    action = EmitLifecycle("run.contended", 1, 3, NOW, reason="2 input(s)", about="contended-9", status="paused")
    record = ENCODER.lifecycle(RUN_ID, "fulfil", "1", action, 9)
    assert dict(record.headers)["ce_id"] == f"{TOPICS.namespace}/{RUN_ID}/1/3/contended-9".encode()
    found = lifecycle_event(action)
    assert (found.status, found.reason, found.about, found.code) == ("paused", "2 input(s)", "", "")


def test_the_outcome_is_in_the_event() -> None:
    found = lifecycle_event(EmitLifecycle("run.failed", 1, 2, NOW, failure=FAILURE))
    assert found.error == FAILURE
    assert lifecycle_event(EmitLifecycle("run.completed", 1, 2, NOW, result=b"null")).result == b"null"
    overdue = Failure("timeout_run", "RunTimedOut", "the run did not end", retryable=False)
    assert lifecycle_event(EmitLifecycle("run.timed_out", 1, 2, NOW, failure=overdue)).error == overdue


@pytest.mark.parametrize("format", FORMATS)
def test_every_form_of_an_event_fits_and_says_the_same(format: Format) -> None:
    """What does not fit is cut in the form that is written; ``content-type`` says which that is."""
    huge = Failure("user", "T", "m", details=b'"' + b"d" * 899_998 + b'"', stack="\1" * 32_000)
    actions = [
        EmitLifecycle("run.started", 1, 1, NOW, about="s1"),
        EmitLifecycle("run.completed", 1, 2, NOW, result=b'{"deep": [1, null, "\xc3\xbc"]}'),
        EmitLifecycle("run.failed", 1, 2, NOW, failure=FAILURE, reason="r"),
        EmitLifecycle("command.rejected", 1, 3, NOW, reason="run_closed", about="c1"),
    ]
    registry = FixedRegistry()
    encoder, reader = Encoder(TOPICS, format=format, registry=registry), lifecycle.LifecycleReader(registry)
    for action in actions:
        record = encoder.lifecycle(RUN_ID, "fulfil", "1", action, 9)
        assert reader.decode(record.key, record.value, record.headers) == lifecycle_event(action)
        assert dict(record.headers)["content-type"] == (
            b"application/json" if format == "json" else b"application/avro"
        )
    record = encoder.lifecycle(RUN_ID, "fulfil", "1", EmitLifecycle("run.failed", 1, 2, NOW, failure=huge), 9)
    found = reader.decode(record.key, record.value, record.headers).error
    assert len(record.value) <= limits.MAX_RECORD_BYTES
    assert found is not None and found.details == huge.details and (found.stack is None) is (format == "json")


def test_avro_of_another_message_is_no_lifecycle_event() -> None:
    stop = Encoder(TOPICS, format="avro").stop(RUN_ID, StopAttempt(1, NODE, "cancelled"))
    with pytest.raises(DataError, match="attempt.stop is no lifecycle event"):
        lifecycle.decode_lifecycle(stop.key, stop.value, [("ce_type", b"ductor.run.started")])


def test_an_outcome_that_does_not_fit_loses_its_stack_then_its_details() -> None:
    stack = Failure("user", "T", "m", details=b'"' + b"d" * 899_998 + b'"', stack="\1" * 32_000)
    found = lifecycle_event(EmitLifecycle("run.failed", 1, 2, NOW, failure=stack)).error
    assert found is not None and found.stack is None and found.details == stack.details
    both = msgspec.structs.replace(stack, message="\1" * 17_000)
    found = lifecycle_event(EmitLifecycle("run.failed", 1, 2, NOW, failure=both, reason="\1" * 1_000)).error
    assert found is not None and found.details is None and len(found.message) == limits.MAX_MESSAGE


@pytest.mark.parametrize(
    ("key", "value", "headers", "reason"),
    [
        (b"r", b"{}", [], "unknown_type"),
        (b"r", b"{}", [("ce_type", b"ductor.run.begun")], "unknown_type"),
        (b"r", None, [("ce_type", b"ductor.run.started")], "tombstone"),
        (b"r", b"{", [("ce_type", b"ductor.run.started")], "undecodable"),
        (b"r", b"[" * 100_000, [("ce_type", b"ductor.run.started")], "undecodable"),
        (b"r", b"{}", [("ce_type", b"ductor.run.started")], "invalid_field"),
        (
            b"r",
            b'{"run_id":"s","execution":1,"workflow":"f","version":"1","seq":1,"record_version":1}',
            None,
            "run_id_mismatch",
        ),
        (
            b"r",
            b'{"run_id":"r","execution":0,"workflow":"f","version":"1","seq":1,"record_version":1}',
            None,
            "invalid_field",
        ),
    ],
)
def test_what_is_no_lifecycle_event(key: bytes, value: bytes | None, headers: Any, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        lifecycle.decode_lifecycle(key, value, [("ce_type", b"ductor.run.started")] if headers is None else headers)
    assert caught.value.reason == reason


# -- dead letters and the inbox -------------------------------------------------------------


def test_a_dead_letter_is_the_original_with_its_reason() -> None:
    record = ENCODER.dead_letter(LETTER)
    assert (record.topic, record.key, record.value) == (TOPICS.dead_letters, b"k", b"\xff{")
    assert dict(record.headers) == {
        "ductor-reason": b"undecodable",
        "ductor-error": b"malformed JSON",
        "ductor-source-topic": b"ductor.shop.run-events",
        "ductor-source-partition": b"3",
        "ductor-source-offset": b"17",
    }


@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"", b"v"), (b"k", None), (b"k", b""), (None, None)])
def test_null_and_empty_are_told_apart(key: bytes | None, value: bytes | None) -> None:
    record = ENCODER.dead_letter(msgspec.structs.replace(LETTER, key=key, value=value))
    names = {name for name, _ in record.headers}
    assert ("ductor-null-key" in names, "ductor-null-value" in names) == (key is None, value is None)
    assert (record.key, record.value) == (key or b"", value or b"")


def test_a_dead_letter_always_fits_the_brokers_default() -> None:
    huge = msgspec.structs.replace(
        LETTER,
        key=b"k" * 1_048_000,
        value=b"v" * limits.MAX_RECORD_BYTES,
        error="😀" * 5_000,
        headers=[("x", b"x" * 16_000), ("y", b"y" * 16_000)],
    )
    record = ENCODER.dead_letter(huge)
    assert dict(record.headers)["ductor-cut-key"] == b"1048000"
    headers = sum(len(name) + len(value) + 10 for name, value in record.headers)
    assert len(record.key) + len(record.value) + headers < 1_048_588 - 100


def test_a_value_that_would_not_fit_is_a_reference() -> None:
    record = ENCODER.dead_letter(msgspec.structs.replace(LETTER, reference="p-1"))
    assert record.value == b"" and dict(record.headers)["ductor-reference"] == b"p-1"
    assert "ductor-null-value" not in dict(record.headers)


def test_original_headers_are_kept_for_a_replay_unless_they_are_huge() -> None:
    mine: list[tuple[str, bytes | None]] = [("traceparent", b"00-1"), ("ductor-reason", b"forged"), ("nothing", None)]
    names = [name for name, _ in ENCODER.dead_letter(msgspec.structs.replace(LETTER, headers=mine)).headers]
    assert names.count("ductor-reason") == 1 and "traceparent" in names and "nothing" not in names
    huge = msgspec.structs.replace(LETTER, headers=[("x", b"x" * 20_000)])
    assert "x" not in dict(ENCODER.dead_letter(huge).headers)


def test_an_error_is_cut_and_can_always_be_sent() -> None:
    record = ENCODER.dead_letter(msgspec.structs.replace(LETTER, error="\ud800" + "x" * 100_000))
    assert len(dict(record.headers)["ductor-error"]) <= 1_000


def test_records_wait_in_the_inbox_as_they_came() -> None:
    received = Received("run-events", 3, 17, b"k", None, [("a", None), ("b", b"\xff")])
    assert inbox.decode_received(inbox.encode_received(received)) == received
    record = ENCODER.wakeup("r")
    assert inbox.decode_outgoing(inbox.encode_outgoing(record)) == record


# -- configuration and times ----------------------------------------------------------------


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="json, avro, registry"):
        Encoder(TOPICS, format="xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="registry"):
        Encoder(TOPICS, format="registry")


@pytest.mark.parametrize("ms", [0, 1, 999, 1_000, NOW, 253_402_300_799_999])
def test_times_there_and_back(ms: int) -> None:
    assert milliseconds(rfc3339(ms)) == ms


def test_times_that_no_calendar_has_are_moved_to_one_that_has() -> None:
    assert rfc3339(2**62) == "9999-12-31T23:59:59.999Z"
    assert rfc3339(-1) == "1970-01-01T00:00:00.000Z"
    assert milliseconds("2026-11-01T13:00:00.1239+01:00") == NOW
    with pytest.raises(ValueError, match="offset"):
        milliseconds("2026-11-01T13:00:00")
