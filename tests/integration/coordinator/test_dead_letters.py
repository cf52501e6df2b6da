"""What can never be applied is set aside byte for byte, and its partition moves on (R11)."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from typing import Any

import pytest
from rig import Rig
from support import until

Headers = list[tuple[str, bytes]]
Case = tuple[str, bytes | None, bytes | None]


def cases(topic: str) -> list[Case]:
    """(reason, key, value) of records that no inbound topic takes."""
    wrong = {"run-events": "attempt.finished", "attempt-results": "run.start", "wakeups": "run.signal"}[topic]
    return [
        ("null_key", None, b'{"type": "run.start", "run_id": "r", "workflow": "chain", "input": 1}'),
        ("null_key", None, None),
        ("bad_key", b"", b'{"type": "wakeup"}'),
        ("bad_key", b"\xff\xfe", b'{"type": "wakeup"}'),
        ("bad_key", b"a\0b", b'{"type": "wakeup"}'),
        ("bad_key", b"k" * 513, b'{"type": "wakeup"}'),
        ("tombstone", b"r", None),
        ("undecodable", b"r", b""),
        ("undecodable", b"r", secrets.token_bytes(100)),
        ("undecodable", b"r", b'{"type": "run.start", "workf'),
        ("undecodable", b"r", b'{"type": "run.signal", "name": "\xff"}'),
        ("undecodable", b"r", b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
        ("unknown_schema", b"r", b"\xc3\x01" + secrets.token_bytes(60)),
        ("unknown_type", b"r", json.dumps({"type": "run.dance"}).encode()),
        ("unknown_type", b"r", json.dumps({"type": wrong}).encode()),
    ]


@pytest.mark.moves("ductor_dead_letters")
def test_every_kind_on_every_topic(rig: Rig) -> None:
    """R11: with reason, place, headers and the original bytes; between them good records are applied."""
    rig.coordinator()
    rig.worker()
    sent: Counter[tuple[Any, ...]] = Counter()
    headers: Headers = [("traceparent", b"00-1-2-03"), ("odd", b"\x00\xff")]
    for topic in ("run-events", "attempt-results", "wakeups"):
        full = f"ductor.{rig.namespace}.{topic}"
        for number, (reason, key, value) in enumerate(cases(topic)):
            rig.send(full, key, value, headers=headers)
            sent[full, reason, key, value] += 1
            if topic == "run-events":
                rig.start(f"good{number}", input=1)
    rig.until_status("completed", *(f"good{number}" for number in range(len(cases("run-events")))))
    until(lambda: len(rig.letters()) >= sent.total(), what="all dead letters")

    found: Counter[tuple[Any, ...]] = Counter()
    for letter in rig.letters():
        key = None if "ductor-null-key" in letter.headers else letter.key
        value = None if "ductor-null-value" in letter.headers else letter.value
        found[letter.headers["ductor-source-topic"], letter.reason, key, value] += 1
        assert letter.headers["traceparent"] == "00-1-2-03"
        assert letter.headers["ductor-error"]
        assert int(letter.headers["ductor-source-offset"]) >= 0
    assert found == sent
    rig.check()


def test_what_is_too_large_for_a_letter_is_kept_in_postgres(rig: Rig) -> None:
    """R11: the letter has a reference, the row has the bytes."""
    rig.coordinator()
    payload = json.dumps({"type": "run.signal", "name": "word", "payload": "x" * 901_000}).encode()
    record = secrets.token_bytes(1_040_000)
    rig.send(rig.topics.run_events, "fits", payload)
    rig.send(rig.topics.run_events, "does not", record)
    rig.start("after", workflow="words", input=1)
    rig.until_status("running", "after")
    until(lambda: len(rig.letters()) == 2, what="two letters")
    letters = {letter.key: letter for letter in rig.letters()}
    assert (letters[b"fits"].reason, letters[b"fits"].value) == ("oversized", payload)
    reference = letters[b"does not"].headers["ductor-reference"]
    assert letters[b"does not"].value == b""
    (row,) = rig.rows("select body from eec_payload where ns = {ns} and id = %s", reference)
    assert bytes(row["body"]) == record
    rig.check()


@pytest.mark.moves("ductor_late_results")
def test_results_and_heartbeats_for_nobody_are_counted_only(rig: Rig) -> None:
    """R8: of runs that do not exist, of nodes that do not exist, of attempts long gone."""
    running = rig.coordinator()
    rig.worker()
    rig.start("r", input=1)
    rig.until_status("completed", "r")
    for run_id in ("r", "nobody"):
        for outcome in ("completed", "failed", "cancelled", "rejected"):
            body = {"execution": 1, "node_id": "99", "generation": 7, "outcome": outcome, "output": 1}
            rig.send(rig.topics.attempt_results, run_id, {"type": "attempt.finished", **body})
            beat = {"type": "attempt.heartbeat", "execution": 9, "node_id": "1", "generation": 1}
            rig.send(rig.topics.attempt_results, run_id, beat)
    until(lambda: running.count("ductor_late_results") == 8, what="eight late results")
    rig.start("after", input=1)
    rig.until_status("completed", "after")
    assert rig.letters() == []
    assert rig.run("nobody") == {}
    rig.check()
