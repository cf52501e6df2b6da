"""The other ends: what workers and clients read and write, and that the coordinator understands it in every form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import CONTEXT, FAILURE, NODE, NOW, RUN_ID, TIMES, TOPICS, FixedRegistry, task

from ductor_stream.engine.actions import DispatchAttempt, StopAttempt
from ductor_stream.engine.events import AttemptFinished, CommandReceived, Failure, RunStarted, SignalReceived
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import DataError, InvalidValue, PayloadTooLarge
from ductor_stream.ports import Outgoing, Received
from ductor_stream.protocol import limits, worker
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, Message
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.requests import Request, RequestEncoder
from ductor_stream.protocol.writing import FORMATS, Format

REGISTRY = FixedRegistry()
INBOUND = InboundDecoder(TOPICS, REGISTRY)
CLIENTS = {format: RequestEncoder(TOPICS, format=format, registry=REGISTRY) for format in FORMATS}
CODECS = {format: worker.WorkerCodec(format, REGISTRY) for format in FORMATS}

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
).map(msgspec.json.encode)
HEADERS = st.dictionaries(st.sampled_from(["traceparent", "ductor-ctx-a", "ductor-ctx-b"]), TEXT)
STARTS = st.one_of(
    st.builds(RunStarted, NAMES, NAMES, JSON, TEXT, run_timeout_ms=st.none() | st.integers(0, 2**40), context=HEADERS),
    st.builds(RunStarted, NAMES, NAMES, JSON, TEXT, st.sampled_from(["reject", "restart_if_closed"])),
)
SIGNALS = st.builds(SignalReceived, TEXT, NAMES, JSON)
COMMANDS = st.one_of(
    st.builds(CommandReceived, st.sampled_from(["cancel", "terminate", "pause", "resume", "retry"]), TEXT, TEXT),
    st.builds(CommandReceived, st.just("reset"), TEXT, TEXT, TEXT),
    st.builds(CommandReceived, st.just("reset"), TEXT, TEXT, st.none(), st.integers(1, 2**31 - 1)),
)
FAILURES = st.builds(
    Failure,
    st.sampled_from(["user", "output_too_large", "input_not_decodable"]),
    TEXT,
    TEXT,
    st.booleans(),
    st.none() | st.integers(0, 2**40),
    st.none() | JSON,
    st.none() | TEXT,
)
FINISHED = st.one_of(
    st.builds(AttemptFinished, st.just(1), st.just("0.3"), st.just(2), st.just("completed"), JSON, worker=TEXT),
    st.builds(
        AttemptFinished,
        st.just(1),
        st.just("0.3"),
        st.just(2),
        st.just("failed"),
        st.none(),
        FAILURES,
        finished_at=TEXT,
    ),
)


def arrived(record: Outgoing) -> Message:
    short = TOPICS.short(record.topic)
    assert short is not None
    return INBOUND.decode(Received(short, 0, 5, record.key, record.value, record.headers), "tid")


# -- round trips ----------------------------------------------------------------------------


@settings(deadline=None)
@given(TEXT, STARTS | SIGNALS | COMMANDS, st.sampled_from(FORMATS))
def test_what_a_client_asks_is_what_the_coordinator_hears(run_id: str, request: Request, format: Format) -> None:
    message = arrived(CLIENTS[format].encode(run_id, request))
    assert isinstance(message, ForRun)
    assert (message.run_id, message.event) == (run_id, request)


@settings(deadline=None)
@given(FINISHED, st.sampled_from(FORMATS))
def test_what_a_worker_reports_is_what_the_coordinator_hears(finished: AttemptFinished, format: Format) -> None:
    assert arrived(CODECS[format].encode_finished(task(), finished)) == ForRun(RUN_ID, None, finished)


@settings(deadline=None)
@given(st.none() | JSON, TEXT, st.sampled_from(FORMATS))
def test_heartbeats_arrive(details: bytes | None, name: str, format: Format) -> None:
    record = CODECS[format].encode_heartbeat(task(), name, TIMES["started_at"], details)
    assert arrived(record) == Beat(RUN_ID, 1, "0.3", 2, name, details)


@pytest.mark.parametrize("format", FORMATS)
def test_a_task_arrives_at_the_worker(format: Format) -> None:
    record = Encoder(TOPICS, format=format, registry=REGISTRY).task(RUN_ID, CONTEXT, DispatchAttempt(1, NODE), NOW, 12)
    assert CODECS["json"].decode_task(record.key, record.value, record.headers) == worker.Task(
        fence=Fence(RUN_ID, 1, "0.3", 2),
        attempt=2,
        step="charge",
        input=NODE.input,
        idempotency_key="shop/order-42%2Fü/1/0.3",
        dispatched_at=NOW,
        start_to_close_ms=600_000,
        schedule_to_start_ms=60_000,
        deadline_at=NOW + 90_000,
        heartbeat_timeout_ms=5_000,
        heartbeat_details=None,
        requires=(),
        results_topic="ductor.shop.attempt-results",
        context=CONTEXT,
    )


@pytest.mark.parametrize("format", FORMATS)
def test_a_stop_arrives_at_the_worker(format: Format) -> None:
    record = Encoder(TOPICS, format=format, registry=REGISTRY).stop(RUN_ID, StopAttempt(1, NODE, "run cancelled"))
    found = CODECS[format].decode_stop(record.key, record.value, record.headers)
    assert found == worker.Stop(Fence(RUN_ID, 1, "0.3", 2), "run cancelled")


def test_outcomes_go_where_the_task_says_under_its_run_id() -> None:
    elsewhere = msgspec.structs.replace(task(), results_topic="ductor.other.attempt-results")
    record = worker.encode_finished(elsewhere, AttemptFinished(1, "0.3", 2, "completed", b"1"))
    assert (record.topic, record.key, record.partition) == ("ductor.other.attempt-results", RUN_ID.encode(), None)
    assert record.headers == [("ductor-wire", b"1")]


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_id", "request_", "says"),
    [
        ("", SignalReceived("", "n", b"1"), "run id"),
        ("a\0", SignalReceived("", "n", b"1"), "run id"),
        ("\ud800", SignalReceived("", "n", b"1"), "run id"),
        ("ü" * 257, SignalReceived("", "n", b"1"), "run id"),
        ("r", SignalReceived("", "a b", b"1"), "signal"),
        ("r", SignalReceived("x" * 257, "n", b"1"), "signal_id"),
        ("r", SignalReceived("", "n", b"{"), "one JSON document"),
        ("r", SignalReceived("", "n", b'1,"name":"m"'), "one JSON document"),
        ("r", SignalReceived("", "n", b"[" * 200 + b"]" * 200), "nested"),
        ("r", RunStarted("a b", "", b"1", ""), "workflow"),
        ("r", RunStarted("w", "a b", b"1", ""), "version"),
        ("r", RunStarted("w", "", b"1", "", "reject"), "start_id"),
        ("r", RunStarted("w", "", b"1", "", run_timeout_ms=-1), "run_timeout_ms"),
        ("r", RunStarted("w", "", b"1", "", context={"traceparent": "x" * 9_000}), "carry along"),
        ("r", CommandReceived("reset", "c"), "to_node"),
        ("r", CommandReceived("reset", "c", "", "3", 7), "one of them"),
        ("r", CommandReceived("reset", "c", to_transition=0), "to_transition"),
    ],
)
def test_a_client_hears_at_once_what_would_be_dead_lettered(run_id: str, request_: Request, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        CLIENTS["json"].encode(run_id, request_)


def test_a_payload_over_the_limit_is_refused_by_the_client() -> None:
    with pytest.raises(PayloadTooLarge, match="input has 900,001 bytes"):
        CLIENTS["json"].encode("r", RunStarted("w", "", b'"' + b"x" * 899_999 + b'"', ""))


def test_details_over_the_limit_are_refused_by_the_worker() -> None:
    with pytest.raises(DataError) as caught:
        worker.encode_heartbeat(task(), "w", "", b'"' + b"x" * limits.MAX_DETAILS_BYTES + b'"')
    assert caught.value.reason == "oversized"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": None}, "null_key"),
        ({"key": b"other"}, "run_id_mismatch"),
        ({"value": None}, "tombstone"),
        ({"value": b"{"}, "undecodable"),
        ({"value": b"\xc3\x01" + b"\0" * 8}, "unknown_schema"),
        ({"value": b'{"type":"attempt.stop"}'}, "unknown_type"),
        ({"value": b'{"type":"task"}'}, "invalid_field"),
        ({"headers": [("ductor-wire", b"2")]}, "unknown_wire"),
    ],
)
def test_a_worker_refuses_what_is_no_task(change: dict[str, Any], reason: str) -> None:
    record = Encoder(TOPICS).task(RUN_ID, {}, DispatchAttempt(1, NODE), NOW, 12)
    fields: dict[str, Any] = {"key": record.key, "value": record.value, "headers": record.headers, **change}
    with pytest.raises(DataError) as caught:
        worker.decode_task(fields["key"], fields["value"], fields["headers"])
    assert caught.value.reason == reason


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-01T12:00:00", "2026-13-01T12:00:00Z", ""])
def test_a_task_with_a_time_that_is_none(text: str) -> None:
    record = Encoder(TOPICS).task(RUN_ID, {}, DispatchAttempt(1, NODE), NOW, 12)
    broken = record.value.replace(b"2026-11-01T12:01:30.123Z", text.encode())
    with pytest.raises(DataError) as caught:
        worker.decode_task(record.key, broken, [])
    assert caught.value.reason == "invalid_field"


def test_a_failure_of_any_size_can_be_reported() -> None:
    huge = msgspec.structs.replace(FAILURE, message="m" * 10**6, stack="s" * 10**6, type="t" * 10**4)
    record = worker.encode_finished(task(), AttemptFinished(1, "0.3", 2, "failed", failure=huge))
    message = arrived(record)
    assert isinstance(message, ForRun) and isinstance(message.event, AttemptFinished)
    assert message.event.failure is not None and message.event.failure.code == "user"
