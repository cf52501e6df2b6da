"""What the coordinator makes of records: each message, each reason to refuse one, and the edges of the limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from wire_cases import TOPICS

from ductor_stream.engine.events import AttemptFinished, CommandReceived, Failure, RunStarted, SignalReceived
from ductor_stream.errors import DataError
from ductor_stream.ports import Inbound, Received
from ductor_stream.protocol import limits
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, Message, WakeupHint

POSITION = "tid/3/17"
FENCE = '"execution":1,"node_id":"3","generation":2'
HOME: dict[str, Inbound] = {"run": "run-events", "attempt": "attempt-results", "wakeup": "wakeups"}


def decode(
    value: str | bytes | None,
    key: bytes | None = b"r",
    headers: list[tuple[str, bytes | None]] | None = None,
    topic: Inbound | None = None,
) -> Message:
    raw = value.encode() if isinstance(value, str) else value
    word = "run" if raw is None else raw.partition(b'"type":"')[2].partition(b".")[0].partition(b'"')[0].decode()
    received = Received(topic or HOME.get(word, "run-events"), 3, 17, key, raw, headers or [])
    return InboundDecoder(TOPICS).decode(received, "tid")


def event(value: str, **other: Any) -> Any:
    message = decode(value, **other)
    assert isinstance(message, ForRun)
    return message.event


def refused(value: str | bytes | None, **other: Any) -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        decode(value, **other)
    return caught.value.reason, str(caught.value)


# -- each message ---------------------------------------------------------------------------


def test_the_smallest_start() -> None:
    found = decode('{"type":"run.start","workflow":"fulfil"}')
    assert found == ForRun("r", None, RunStarted("fulfil", "", b"null", POSITION))


def test_a_start_with_everything() -> None:
    found = decode(
        '{"type":"run.start","run_id":"r","workflow":"fulfil","input":{"a": [1, 2]},"start_id":"s1","version":"1",'
        '"on_conflict":"reject","run_timeout_ms":5,"memo":{"x":1},"search":{},"new_field":[{}]}',
        headers=[
            ("traceparent", b"00-1"),
            ("ductor-ctx-tenant", b"k\xc3\xb6ln"),
            ("other", b"x"),
            ("ductor-wire", b"1"),
        ],
    )
    context = {"traceparent": "00-1", "ductor-ctx-tenant": "köln"}
    assert found == ForRun(
        "r", ("start", "s1"), RunStarted("fulfil", "1", b'{"a": [1, 2]}', "s1", "reject", 5, context)
    )


@pytest.mark.parametrize("word", ["reject", "restart_if_closed", "restart_if_failed", "terminate_existing"])
def test_on_conflict_needs_a_start_id(word: str) -> None:
    body = f'{{"type":"run.start","workflow":"f","on_conflict":"{word}"'
    assert refused(body + "}") == ("invalid_field", f"run.start: on_conflict {word} requires a start_id")
    assert decode(body + ',"start_id":"s"}').dedupe == ("start", "s")  # type: ignore[union-attr]


def test_a_signal_with_and_without_id() -> None:
    found = decode('{"type":"run.signal","signal_id":"a7","name":"approved","payload":true}')
    assert found == ForRun("r", ("signal", "a7"), SignalReceived("a7", "approved", b"true"))
    found = decode('{"type":"run.signal","name":"approved"}')
    assert found == ForRun("r", ("signal", POSITION), SignalReceived(POSITION, "approved", b"null"))


@pytest.mark.parametrize("kind", ["cancel", "terminate", "pause", "resume", "retry"])
def test_commands(kind: str) -> None:
    found = decode(f'{{"type":"run.{kind}","command_id":"c1","reason":"why"}}')
    assert found == ForRun("r", ("command", "c1"), CommandReceived(kind, "c1", "why"))  # type: ignore[arg-type]
    found = decode(f'{{"type":"run.{kind}"}}')
    assert found == ForRun("r", ("command", POSITION), CommandReceived(kind, POSITION))  # type: ignore[arg-type]


def test_a_reset_names_its_node() -> None:
    assert event('{"type":"run.reset","to_node":"3"}') == CommandReceived("reset", POSITION, "", "3")
    assert event('{"type":"run.reset","to_transition":7}') == CommandReceived("reset", POSITION, "", None, 7)
    for where in (
        "",
        ',"to_node":null',
        ',"to_node":"3","to_transition":7',
        ',"to_transition":0',
        ',"to_transition":"7"',
    ):
        assert refused(f'{{"type":"run.reset"{where}}}')[0] == "invalid_field"


def test_a_completed_attempt() -> None:
    found = decode(
        f'{{"type":"attempt.finished",{FENCE},"outcome":"completed","output":"r-77","worker":"w","started_at":"a",'
        '"finished_at":"b"}'
    )
    assert found == ForRun("r", None, AttemptFinished(1, "3", 2, "completed", b'"r-77"', None, "w", "a", "b"))
    assert event(f'{{"type":"attempt.finished",{FENCE},"outcome":"completed"}}').output is None


def test_a_failed_attempt() -> None:
    found = event(
        f'{{"type":"attempt.finished",{FENCE},"outcome":"failed","error":{{"code":"output_too_large","type":"T",'
        '"message":"m","retryable":false,"retry_after_ms":7,"details":{"a":1},"stack":"s"}}'
    )
    assert found.failure == Failure("output_too_large", "T", "m", False, 7, b'{"a":1}', "s")
    assert found.output is None


@pytest.mark.parametrize(
    ("outcome", "error", "expected"),
    [
        ("failed", "{}", Failure("user", "Unknown", "")),
        ("failed", "null", Failure("user", "Unknown", "the worker reported failed and no error")),
        ("failed", '{"code":"timeout_run","type":null,"message":null}', Failure("user", "Unknown", "")),
        ("failed", '{"code":"cancelled","retryable":null}', Failure("cancelled", "Unknown", "")),
        ("rejected", '{"code":"requires_unknown"}', Failure("requires_unknown", "Unknown", "")),
        ("rejected", '{"code":"user"}', Failure("step_unknown", "Unknown", "")),
        ("rejected", "null", Failure("step_unknown", "Unknown", "the worker reported rejected and no error")),
        ("cancelled", "null", None),
        ("completed", '{"code":"user"}', None),
    ],
)
def test_errors_are_taken_as_far_as_they_go(outcome: str, error: str, expected: Failure | None) -> None:
    body = f'{{"type":"attempt.finished",{FENCE},"outcome":"{outcome}","error":{error}}}'
    assert event(body).failure == expected


def test_a_heartbeat() -> None:
    body = f'{{"type":"attempt.heartbeat",{FENCE},"started_at":"x","worker":"w","details":{{"page":17}}}}'
    assert decode(body) == Beat("r", 1, "3", 2, "w", b'{"page":17}')
    assert decode(f'{{"type":"attempt.heartbeat",{FENCE}}}') == Beat("r", 1, "3", 2, "", None)


def test_a_wakeup() -> None:
    assert decode('{"type":"wakeup"}') == WakeupHint("r")


def test_null_is_the_same_as_missing() -> None:
    body = (
        '{"type":"run.start","run_id":null,"workflow":"f","input":null,"start_id":null,"version":null,'
        '"on_conflict":null,"run_timeout_ms":null,"memo":null,"search":null}'
    )
    assert decode(body) == decode('{"type":"run.start","workflow":"f"}')
    body = '{"type":"run.cancel","command_id":null,"reason":null}'
    assert decode(body) == decode('{"type":"run.cancel"}')


def test_user_values_are_copies() -> None:
    """A payload that is a view would keep its whole record alive in the run's history."""
    value = b'{"type":"run.signal","name":"n","payload":"x","junk":"' + b"j" * 50_000 + b'"}'
    payload = decode(value).event.payload  # type: ignore[union-attr]
    assert type(payload) is bytes and len(payload) == 3


# -- reasons to refuse ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, b"", b"\xff", b'{"type":"run.start","workflow":"f","run_id":"r"}'])
def test_a_null_key_is_refused_whatever_the_body_says(value: bytes | None) -> None:
    assert refused(value, key=None)[0] == "null_key"


@pytest.mark.parametrize("key", [b"", b"x" * 513, b"\xff", b"a\0b", b"\xed\xa0\x80"])
def test_bad_keys(key: bytes) -> None:
    assert refused('{"type":"wakeup"}', key=key)[0] == "bad_key"


@pytest.mark.parametrize("key", [b"x" * 512, "ü/ \n:{}".encode(), "😀".encode() * 128])
def test_any_other_characters_are_a_run_id(key: bytes) -> None:
    assert decode('{"type":"wakeup"}', key=key) == WakeupHint(key.decode())


def test_a_tombstone() -> None:
    assert refused(None)[0] == "tombstone"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b'"run.start"',
        b"\xc3",
        b"\xc3\x02",
        b"\x01",
        b"{",
        b'{"type":"run.start","workflow":"f"',
        b'{"type":"run.start","workflow":"f"}x',
        b'{"type":"run.start","workflow":"f"}{}',
        b'{"type":"run.start","workflow":"f","input":NaN}',
        b'{"type":"run.start","workflow":"f","input":Infinity}',
        b'{"type":"run.start","workflow":"f","input":tru}',
        b'{"type":"run.start","workflow":"f","input":01}',
        b'{"type":"run.start","workflow":"f","input":}',
        b'{"type":"run.start","workflow":"f","input":"\xff"}',
        b'{"type":"run.start","workflow":"f","input":"\xed\xa0\x80"}',
        b'{"type":"run.start","workflow":"f","input":"\\ud800"}',
        b'{"type":"run.start","workflow":"f","input":"\\udc00\\ud800"}',
        b'{"type":"run.start","workflow":"f","input":"a\nb"}',
        b'{"type":"run.start","workflow":"f","unknown":"\xff"}',
        b'{"type":"run.start","workflow":"f","\xff":1}',
        b'\xef\xbb\xbf{"type":"run.start","workflow":"f"}',
    ],
)
def test_undecodable_values(value: bytes) -> None:
    assert refused(value, topic="run-events")[0] == "undecodable"


@pytest.mark.parametrize("levels", [limits.MAX_NESTING, 1_000, 100_000, 400_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused_wherever_it_is(levels: int, opening: str, closing: str) -> None:
    levels = min(levels, 900_000 // len(opening + closing))
    deep = opening * levels + "1" + closing * levels
    for field in ("input", "unknown"):
        reason, message = refused(f'{{"type":"run.start","workflow":"f","{field}":{deep}}}')
        assert (reason, "nested" in message) == ("undecodable", True)
    assert refused(opening * levels, topic="run-events")[0] == "undecodable"


def test_what_is_just_not_too_deep_is_taken() -> None:
    levels = limits.MAX_VALUE_NESTING
    deep = "[" * levels + "]" * levels
    assert event(f'{{"type":"run.start","workflow":"f","input":{deep}}}').input == deep.encode()
    wide = "[" + ",".join(['{"[":"\\"]"}'] * 5_000) + "]"
    assert event(f'{{"type":"run.start","workflow":"f","input":{wide}}}').input == wide.encode()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{}", "no type"),
        (b'{"type":null}', "no type"),
        (b'{"type":7}', "type"),
        (b'{"type":{"a":[]}}', "type"),
        (b'{"type":"run.begin"}', "no type of message is called 'run.begin'"),
        (b'{"type":"task"}', "its topic is tasks.<queue>"),
        (b'{"type":"attempt.finished"}', "its topic is attempt-results"),
        (b'{"type":"attempt.stop"}', "its topic is attempt-control"),
        (b'{"type":"' + b"x" * 10_000 + b'"}', "xxx"),
    ],
)
def test_unknown_types(value: bytes, says: str) -> None:
    reason, message = refused(value, topic="run-events")
    assert reason == "unknown_type"
    assert says in message and len(message) < 300


@pytest.mark.parametrize("value", [b"{}", b'{"type":null}', b'{"type":""}', b'{"run_id":"r"}'])
def test_the_only_type_of_a_topic_must_be_named_too(value: bytes) -> None:
    assert refused(value, topic="wakeups")[0] == "unknown_type"


@pytest.mark.parametrize("value", [b" 4", b" [1]", b' "text"', b'{"type":2#', b'{"type":7,"x":nul}', b'{"workflow":7'])
def test_what_is_no_object_is_undecodable_whatever_else_is_wrong(value: bytes) -> None:
    assert refused(value, topic="run-events")[0] == "undecodable"


@pytest.mark.parametrize(
    "body",
    [
        '"type":"run.start"',
        '"type":"run.start","workflow":""',
        '"type":"run.start","workflow":"a b"',
        '"type":"run.start","workflow":"a\\n"',
        '"type":"run.start","workflow":7',
        '"type":"run.start","workflow":null',
        f'"type":"run.start","workflow":"{"w" * 129}"',
        '"type":"run.start","workflow":"f","version":"a/b"',
        '"type":"run.start","workflow":"f","version":1',
        '"type":"run.start","workflow":"f","run_id":7',
        '"type":"run.start","workflow":"f","on_conflict":"never"',
        '"type":"run.start","workflow":"f","run_timeout_ms":-1',
        '"type":"run.start","workflow":"f","run_timeout_ms":1.5',
        '"type":"run.start","workflow":"f","run_timeout_ms":"5"',
        f'"type":"run.start","workflow":"f","run_timeout_ms":{limits.MAX_DURATION_MS + 1}',
        f'"type":"run.start","workflow":"f","run_timeout_ms":{"9" * 5_000}',
        '"type":"run.start","workflow":"f","memo":[]',
        '"type":"run.start","workflow":"f","search":"x"',
        '"type":"run.start","workflow":"f","start_id":""',
        '"type":"run.start","workflow":"f","start_id":"a\\u0000b"',
        f'"type":"run.start","workflow":"f","start_id":"{"s" * 257}"',
        f'"type":"run.start","workflow":"f","start_id":"{"ü" * 129}"',
        '"type":"run.signal","signal_id":"x"',
        '"type":"run.signal","name":"a b"',
        f'"type":"run.cancel","command_id":"{"c" * 257}"',
        '"type":"run.cancel","command_id":{}',
        '"type":"run.reset","to_node":""',
        '"type":"attempt.heartbeat","execution":1,"node_id":"3"',
        '"type":"attempt.heartbeat","execution":0,"node_id":"3","generation":1',
        '"type":"attempt.heartbeat","execution":2147483648,"node_id":"3","generation":1',
        '"type":"attempt.heartbeat","execution":1,"node_id":"3","generation":2147483648',
        '"type":"attempt.heartbeat","execution":1,"node_id":"3","generation":true',
        '"type":"attempt.heartbeat","execution":1,"node_id":3,"generation":1',
        '"type":"attempt.heartbeat","execution":1,"node_id":"","generation":1',
        '"type":"attempt.heartbeat","execution":1,"node_id":"\\u0000","generation":1',
        f'"type":"attempt.heartbeat","execution":1,"node_id":"{"n" * 257}","generation":1',
        f'"type":"attempt.finished",{FENCE}',
        f'"type":"attempt.finished",{FENCE},"outcome":"done"',
        f'"type":"attempt.finished",{FENCE},"outcome":"failed","error":"boom"',
        f'"type":"attempt.finished",{FENCE},"outcome":"failed","error":{{"retryable":"no"}}',
        f'"type":"attempt.finished",{FENCE},"outcome":"failed","error":{{"retry_after_ms":-1}}',
    ],
)
def test_invalid_fields(body: str) -> None:
    assert refused("{" + body + "}")[0] == "invalid_field"


def test_another_run_id_in_the_body() -> None:
    reason, message = refused('{"type":"wakeup","run_id":"other"}')
    assert (reason, message) == ("run_id_mismatch", "the key is 'r', the body says 'other'")
    assert refused('{"type":"wakeup","run_id":""}')[0] == "run_id_mismatch"


@pytest.mark.parametrize("value", [b"2", b"", None, b"x" * 1_000])
def test_another_version_of_the_wire(value: bytes | None) -> None:
    reason, message = refused('{"type":"wakeup"}', headers=[("ductor-wire", value)])
    assert reason == "unknown_wire" and len(message) < 100


# -- limits ---------------------------------------------------------------------------------


def test_payloads_up_to_the_limit_are_taken() -> None:
    value = '"' + "x" * (limits.MAX_PAYLOAD_BYTES - 2) + '"'
    start = f'{{"type":"run.start","workflow":"f","input":{value}}}'
    assert len(event(start).input) == limits.MAX_PAYLOAD_BYTES
    assert refused(start.replace('"x', '"xx')) == ("oversized", "input has 900,001 bytes, 900,000 are the limit")
    signal = f'{{"type":"run.signal","name":"n","payload":{value}}}'
    assert refused(signal.replace('"x', '"xx'))[0] == "oversized"


def test_an_output_over_the_limit_is_a_failed_attempt() -> None:
    """Set aside, its run would wait for it until a timeout."""
    value = '"' + "x" * (limits.MAX_PAYLOAD_BYTES - 1) + '"'
    finished = event(f'{{"type":"attempt.finished",{FENCE},"outcome":"completed","output":{value}}}')
    assert (finished.outcome, finished.output) == ("failed", None)
    assert (finished.failure.code, finished.failure.retryable) == ("output_too_large", False)


def test_records_over_the_limit_are_refused_unread() -> None:
    value = b"{" + b" " * limits.MAX_RECORD_BYTES
    assert refused(value, topic="run-events")[0] == "oversized"


def test_details_of_a_heartbeat_have_a_limit_of_their_own() -> None:
    body = f'{{"type":"attempt.heartbeat",{FENCE},"details":"%s"}}'
    found = decode(body % ("x" * (limits.MAX_DETAILS_BYTES - 2)))
    assert isinstance(found, Beat) and found.details is not None
    assert refused(body % ("x" * (limits.MAX_DETAILS_BYTES - 1)))[0] == "oversized"


def test_texts_for_people_are_cut_and_cleaned_not_refused() -> None:
    long = "y\\u0000" * 20_000
    found = event(
        f'{{"type":"attempt.finished",{FENCE},"outcome":"failed","worker":"{long}",'
        f'"error":{{"type":"{long}","message":"{long}","stack":"{long}"}}}}'
    )
    assert len(found.worker) == limits.MAX_WORKER
    assert len(found.failure.message) == limits.MAX_MESSAGE
    assert len(found.failure.stack) <= limits.MAX_STACK and "[…]" in found.failure.stack
    for text in (found.worker, found.failure.type, found.failure.message, found.failure.stack):
        assert "\0" not in text and text.startswith("y\ufffd")
    assert len(event(f'{{"type":"run.cancel","reason":"{long}"}}').reason) == limits.MAX_REASON


def test_half_a_surrogate_pair_does_not_lose_a_failure() -> None:
    """Python's json writes a file name that was no UTF-8 as lone surrogates."""
    body = f'{{"type":"attempt.finished",{FENCE},"outcome":"%s","error":{{"message":"no \\\\udcff \\udcff \\ud83d\\ude00"}}}}'
    assert event(body % "failed").failure.message == "no \\udcff \ufffd 😀"
    assert refused(body % "completed")[0] == "undecodable"


def test_what_is_carried_along_is_bounded_and_text() -> None:
    start = '{"type":"run.start","workflow":"f"}'
    odd: list[tuple[str, bytes | None]] = [("traceparent", b"\xff"), ("ductor-ctx-a", None), ("ductor-ctx-ü", b"x")]
    assert event(start, headers=odd).context == {}
    assert refused(start, headers=[("ductor-ctx-a", b"x" * 8_192)])[0] == "invalid_field"
    assert refused(start, headers=[(f"ductor-ctx-{n}", b"") for n in range(33)])[0] == "invalid_field"
    assert len(event(start, headers=[(f"ductor-ctx-{n}", b"") for n in range(32)]).context) == 32


def test_white_space_before_the_object_is_tolerated() -> None:
    assert decode(' \r\n\t{"type":"wakeup"}', topic="wakeups") == WakeupHint("r")


def test_events_survive_the_history() -> None:
    """What is decoded goes into MessagePack as it is."""
    found = event('{"type":"run.signal","name":"n","payload":"\\u0000\\ud83d\\ude00"}')
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=SignalReceived) == found
