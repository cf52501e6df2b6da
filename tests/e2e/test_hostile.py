"""Hostile records by the ten thousand among good runs: each has its fate, and none blocks a partition (R11)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import product
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from fleet import Fleet, fleet_of
from hostile import TOPICS, Bad, Topic, records
from rig import Letter, Rig
from support import until

PER_TOPIC = 10_000
GHOSTS = 2_000
"""Of those of attempt-results: well-formed results of runs that do not exist, and of attempts that are not current."""

GOOD = [f"good-{n}" for n in range(200)]
STEPS = 3
CUT_KEY = 16_384

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Sender:
    """Sends records to any partition, and remembers where each one stands."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self._rig, self._rng = rig, rng
        self._producer = Producer(
            {"bootstrap.servers": rig.bootstrap, "message.max.bytes": 2_000_000, "batch.size": 100_000}
        )
        self.sent: dict[Place, Bad] = {}

    def bad(self, topic: Topic, bad: Bad) -> None:
        """One hostile record."""

        def heard(error: object, message: Message) -> None:
            assert error is None, error
            self.sent[(message.topic() or "", message.partition() or 0, message.offset() or 0)] = bad

        self._produce(topic, bad.key, bad.value, headers=list(bad.headers), on_delivery=heard)

    def good(self, topic: Topic, key: str, body: dict[str, Any]) -> None:
        """One that is well-formed."""
        self._produce(topic, key.encode(), json.dumps(body).encode())

    def flush(self) -> None:
        """All has arrived."""
        assert self._producer.flush(120) == 0

    def _produce(self, topic: Topic, key: bytes | None, value: bytes | None, **more: Any) -> None:
        partition = self._rng.randrange(self._rig.partitions)
        self._producer.produce(self._rig.topics.inbound(topic), value, key, partition=partition, **more)
        self._producer.poll(0)


def ghost(number: int) -> tuple[str, dict[str, Any]]:
    """A result that is well-formed and that nobody waits for; ids as large as they may be among them."""
    run_id = [f"nobody-{number}", "ü" * 256, GOOD[number % len(GOOD)]][number % 3]
    fence = {"execution": 1 + number % 2 * (2**31 - 2), "node_id": "n" * (1 + number % 256), "generation": 2**31 - 1}
    return run_id, {"type": "attempt.finished", **fence, "outcome": "completed", "output": number}


def faults(sent: dict[Place, Bad], letters: Iterable[Letter], payloads: dict[str, bytes]) -> list[str]:
    """What is wrong with the letters: one missing, one too many, other bytes, another reason."""
    found: list[str] = []
    left = dict(sent)
    for letter in letters:
        marks = {name.removeprefix("ductor-source-"): value for name, value in letter.headers.items()}
        place = (marks["topic"], int(marks["partition"]), int(marks["offset"]))
        bad = left.pop(place, None)
        if bad is None:
            found.append(f"{place} was not to be set aside, or is set aside twice: {letter.reason}")
        elif (said := wrong(bad, letter, payloads)) or letter.reason not in bad.reasons:
            found.append(f"{place}: {letter.reason}, not {sorted(bad.reasons)}; {said} ({(bad.value or b'')[:120]!r})")
    return found + [
        f"{place} is not set aside: {bad.reasons} {(bad.value or b'')[:120]!r}" for place, bad in left.items()
    ]


def wrong(bad: Bad, letter: Letter, payloads: dict[str, bytes]) -> str:
    """What is not as it came, byte for byte."""
    value = None if "ductor-null-value" in letter.headers else letter.value or b""
    if reference := letter.headers.get("ductor-reference"):
        value = payloads[reference]
    key = None if "ductor-null-key" in letter.headers else letter.key or b""
    if key is not None and "ductor-cut-key" in letter.headers:
        if (bad.key or b"")[:CUT_KEY] != key or int(letter.headers["ductor-cut-key"]) != len(bad.key or b""):
            return "another key"
    elif key != bad.key:
        return "another key"
    kept = {name: value.decode("utf-8", "replace") for name, value in bad.headers}
    shown = {name: letter.headers.get(name, "").encode().decode() for name in kept}
    return "another value" if value != bad.value else "other headers" if kept != shown else ""


def send_all(rig: Rig, sender: Sender, rng: random.Random) -> None:
    """Hostile and good ones, mixed."""
    bads: dict[Topic, list[Bad]] = {topic: records(topic, PER_TOPIC, rng) for topic in TOPICS}
    bads["attempt-results"] = bads["attempt-results"][GHOSTS:]
    good = [(run_id, n) for n, run_id in enumerate(GOOD)]
    for number in range(PER_TOPIC):
        for topic in TOPICS:
            if number < len(bads[topic]):
                sender.bad(topic, bads[topic][number])
        if number < GHOSTS:
            sender.good("attempt-results", *ghost(number))
        if number % (PER_TOPIC // len(GOOD)) == 0:
            run_id, _ = good.pop()
            start = {"type": "run.start", "run_id": run_id, "workflow": "chain", "input": STEPS}
            sender.good("run-events", run_id, start)
    assert good == []
    sender.flush()


def until_read(rig: Rig) -> None:
    """Every partition is read to its end: none is blocked."""
    consumer = Consumer({"bootstrap.servers": rig.bootstrap, "group.id": "unused"})

    def look() -> bool:
        unread: dict[str, int] = {}
        rows = rig.rows("select partition, offsets from eec_partition where ns = {ns}")
        for row, (index, topic) in product(rows, enumerate(TOPICS)):
            place = TopicPartition(rig.topics.inbound(topic), row["partition"])
            if left := consumer.get_watermark_offsets(place, 10)[1] - row["offsets"][index]:
                unread[f"{topic}/{row['partition']}"] = left
        assert not unread, unread
        return True

    try:
        until(look, within_ms=90_000, what="everything read")
    finally:
        consumer.close()


def send_again(rig: Rig, sender: Sender) -> int:
    """Every result that was ever accepted, once more; gives how many these are."""
    count = 0
    for message in rig.read(rig.topics.attempt_results):
        body = _result(message)
        if body is not None and body["run_id"] in GOOD and body["generation"] < 1_000:
            sender.good("attempt-results", body["run_id"], body)
            count += 1
    sender.flush()
    return count


def _result(message: Message) -> dict[str, Any] | None:
    headers: Any = dict(message.headers() or [])
    by_worker = message.key() and message.value() and headers.get("ductor-wire") == b"1"
    return json.loads(message.value() or b"") if by_worker else None


def test_hostile_records_among_good_runs(rig: Rig) -> None:
    """R9, R11, R12, protocol 23: good runs complete, letters are byte for byte, late results are counted."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    sender = Sender(rig, rng)
    with fleet_of(rig) as fleet:
        fleet.start("coordinator")
        fleet.start("coordinator")
        fleet.start("worker")
        fleet.until_ready()
        send_all(rig, sender, rng)
        rig.until_status("completed", *GOOD, within_ms=90_000)
        again = send_again(rig, sender)
        until_read(rig)
        assert again == STEPS * len(GOOD)
        check(rig, fleet, sender, again, f"seed {seed}")


def check(rig: Rig, fleet: Fleet, sender: Sender, again: int, seed: str) -> None:
    """Both sums, and that nothing else has happened."""
    expected = 3 * PER_TOPIC - GHOSTS
    rows = rig.rows("select id, body from eec_payload where ns = {ns}")
    payloads = {row["id"]: bytes(row["body"]) for row in rows}
    rig.check()  # nothing is left to send
    assert faults(sender.sent, rig.letters(), payloads)[:10] == [], seed
    assert fleet.total("ductor_dead_letters_total") == expected
    assert fleet.total("ductor_late_results_total") == GHOSTS + again

    runs = rig.rows("select run_id, result from eec_workflow_run where ns = {ns}")
    assert sorted(row["run_id"] for row in runs) == sorted(GOOD)
    assert {bytes(row["result"]) for row in runs} == {b"[0,1,2]"}
    assert set(fleet.effect_counts().values()) == {1}
