"""Whatever is on a topic, decoding ends in a value or in a DataError, and what is let through is safe to store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from wire_cases import TOPICS, FixedRegistry, records

from ductor_stream.engine.events import AnyEvent
from ductor_stream.errors import DataError
from ductor_stream.ports import INBOUND, Inbound, Received
from ductor_stream.protocol import json_text, limits
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, Message, WakeupHint
from ductor_stream.protocol.lifecycle import decode_lifecycle
from ductor_stream.protocol.vocabulary import REASONS, TOPIC_OF_TYPE
from ductor_stream.protocol.worker import WorkerCodec

DECODER = InboundDecoder(TOPICS, FixedRegistry())
CODEC = WorkerCodec(registry=FixedRegistry())
VALUES = sorted({record.value for _, record in records()})
HEADERS = st.lists(
    st.tuples(st.sampled_from(["ductor-wire", "traceparent", "ductor-ctx-a", "ce_type", "x"]), st.none() | st.binary()),
    max_size=3,
)
KEYS = st.none() | st.binary(max_size=600) | st.just(b"order-42/\xc3\xbc")
FIELDS = [
    "run_id",
    "workflow",
    "input",
    "start_id",
    "version",
    "on_conflict",
    "run_timeout_ms",
    "memo",
    "search",
    "signal_id",
    "name",
    "payload",
    "command_id",
    "reason",
    "to_node",
    "execution",
    "node_id",
    "generation",
    "attempt",
    "step",
    "outcome",
    "output",
    "error",
    "worker",
    "started_at",
    "finished_at",
    "details",
    "requires",
    "results_topic",
    "heartbeat_timeout_ms",
    "deadline_at",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800") | st.just("\0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: Callable[[Any], Any]) -> bytes:
    """A valid record with a few bytes changed, put in, taken out, or cut off."""
    value = bytearray(draw(st.sampled_from(VALUES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(value)))
        match draw(st.integers(0, 4)):
            case 0:
                value[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                value[at:at] = draw(st.binary(max_size=12) | st.just(b"\xff" * 12) | st.just(b"\\ud800"))
            case 2:
                del value[at : at + draw(st.integers(1, 8))]
            case 3:
                del value[at:]
            case _:
                value[at:at] = value[: draw(st.integers(0, 40))]
    return bytes(value)


def made_up() -> st.SearchStrategy[bytes]:
    """Objects of known types with fields of any type; ``json`` writes NaN and lone surrogates, as many clients do."""
    types = st.sampled_from([*TOPIC_OF_TYPE, "run.begin", "", None, 7])
    bodies = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=12)
    fences = st.just({}) | st.just({"execution": 1, "node_id": "3", "generation": 1, "outcome": "failed"})
    return st.builds(
        lambda type, body, fence: json.dumps({"type": type, **fence, **body}).encode(), types, bodies, fences
    )


HOSTILE = (
    st.binary(max_size=200)
    | st.builds(lambda start, rest: start + rest, st.sampled_from([value[:10] for value in VALUES]), st.binary())
    | mutated()
    | made_up()
)


def storable(text: str, limit: int) -> None:
    """Fits a text column and an index, and can be printed."""
    assert "\0" not in text
    assert len(text.encode()) <= limit


def carried(value: bytes | None) -> None:
    assert value is None or (type(value) is bytes and len(value) <= limits.MAX_PAYLOAD_BYTES)
    if value is not None:
        json_text.document(value, limits.MAX_NESTING)
        json.loads(value)


def check_event(event: AnyEvent) -> None:
    assert isinstance(event, get_args(AnyEvent))
    for field in event.__struct_fields__:
        found = getattr(event, field)
        if isinstance(found, bytes):
            carried(found)
        elif isinstance(found, str):
            storable(found, 4 * limits.MAX_REASON)
        elif isinstance(found, int):
            assert 0 <= found <= limits.MAX_DURATION_MS
        elif field == "failure" and found is not None:
            carried(found.details)
            for text in (found.code, found.type, found.message, found.stack or ""):
                storable(text, 4 * limits.MAX_STACK)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=type(event)) == event


def check(message: Message) -> None:
    storable(message.run_id, limits.MAX_RUN_ID_BYTES)
    match message:
        case ForRun():
            if message.dedupe is not None:
                storable(message.dedupe[1], limits.MAX_ID_BYTES)
            check_event(message.event)
        case Beat():
            storable(message.node_id, limits.MAX_ID_BYTES)
            storable(message.worker, 4 * limits.MAX_WORKER)
            carried(message.details)
            assert message.details is None or len(message.details) <= limits.MAX_DETAILS_BYTES
        case WakeupHint():
            pass


def only_data_errors(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except DataError as error:
        assert error.reason in REASONS
        assert "\0" not in error.reason and str(error)
        return None


@settings(deadline=None, max_examples=800, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(INBOUND), KEYS, st.none() | HOSTILE, HEADERS)
@example("run-events", b"r", b'{"type":"run.start","workflow":"f","input":' + b"[" * 400_000, [])
@example("run-events", b"r", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, [])
@example("attempt-results", b"r", b"\xff" * 1_000_001, [])
@example("run-events", b"r" * 100_000, b"{}", [])
def test_no_record_breaks_the_coordinators_decoder(
    topic: Inbound, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    message = only_data_errors(lambda: DECODER.decode(Received(topic, 1, 2, key, value, headers), "tid"))
    if message is not None:
        check(message)


@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(KEYS, st.none() | HOSTILE, HEADERS)
@example(b"r", b'{"type":"task","input":' + b"[" * 400_000, [])
def test_no_record_breaks_workers_and_clients(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    only_data_errors(lambda: CODEC.decode_task(key, value, headers))
    only_data_errors(lambda: CODEC.decode_stop(key, value, headers))
    only_data_errors(lambda: decode_lifecycle(key, value, headers))
    only_data_errors(lambda: decode_lifecycle(key, value, [("ce_type", b"ductor.run.failed")]))


@pytest.mark.parametrize("value", VALUES)
def test_no_truncation_breaks_a_decoder(value: bytes) -> None:
    for end in range(min(len(value), 600)):
        for topic in INBOUND:
            only_data_errors(lambda t=topic, e=end: DECODER.decode(Received(t, 0, 0, b"r", value[:e], []), "tid"))  # type: ignore[misc]
        only_data_errors(lambda e=end: CODEC.decode_task(b"r", value[:e], []))  # type: ignore[misc]


def recurse(depth: int, then: Callable[[], Any]) -> Any:
    return then() if depth == 0 else recurse(depth - 1, then)


def test_deep_nesting_is_a_data_error_even_with_little_stack_left() -> None:
    nested = b'{"type":"wakeup","x":' + b"[" * 190 + b"]" * 190 + b"}"
    assert DECODER.decode(Received("wakeups", 0, 0, b"r", nested, []), "tid") == WakeupHint("r")
    decode = lambda: only_data_errors(lambda: DECODER.decode(Received("wakeups", 0, 0, b"r", nested, []), "tid"))
    for depth in range(0, 850, 50):
        recurse(depth, decode)


def test_a_string_without_an_end_is_scanned_once() -> None:
    value = b'{"type":"wakeup","x":[{' + b"[" * 300 + b'"' + b'\\"[' * 300_000
    assert json_text.nesting(value) == 303
    with pytest.raises(DataError, match="nested"):
        DECODER.decode(Received("wakeups", 0, 0, b"r", value, []), "tid")


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
def test_the_nesting_of_any_bytes_can_be_measured(text: bytes) -> None:
    assert json_text.nesting(text) >= 0


@settings(deadline=None)
@given(ANYTHING)
def test_the_nesting_of_json_is_counted_outside_of_strings(value: Any) -> None:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert json_text.nesting(json.dumps(value).encode()) == depth(value)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["\ud800", "\udfff", "😀", "\\", "\\ud800", '"', "a", "\\\\"]), max_size=8))
def test_lone_surrogates_are_repaired_and_nothing_else(parts: list[str]) -> None:
    text = "".join(parts)
    repaired = msgspec.json.decode(json_text.without_lone_surrogates(json.dumps(text).encode()))
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert repaired == joined
