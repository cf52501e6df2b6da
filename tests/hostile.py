"""Records that no client of ours would send, for each inbound topic; each with the reasons that its dead letter may have.

Written from the page of the wire, not with the decoder: what is here can never be applied.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Topic = Literal["run-events", "attempt-results", "wakeups"]
TOPICS: tuple[Topic, ...] = ("run-events", "attempt-results", "wakeups")

_AVRO = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "golden" / "wire").glob("*.avro")}
_CONFLUENT = [path.read_bytes() for path in (Path(__file__).parent / "golden" / "wire").glob("*.registry")]
_TYPES: dict[Topic, tuple[str, ...]] = {
    "run-events": (
        "run.start",
        "run.signal",
        "run.cancel",
        "run.terminate",
        "run.pause",
        "run.resume",
        "run.retry",
        "run.reset",
    ),
    "attempt-results": ("attempt.finished", "attempt.heartbeat"),
    "wakeups": ("wakeup",),
}
_KEY = "order-42/ü"
"""What the committed Avro records are about."""

_FENCE: dict[str, Any] = {"execution": 1, "node_id": "3", "generation": 1}
_VALID: dict[str, dict[str, Any]] = {
    "run.start": {"workflow": "chain", "input": 1},
    "run.signal": {"name": "paid", "payload": 1},
    "run.cancel": {},
    "run.terminate": {},
    "run.pause": {},
    "run.resume": {},
    "run.retry": {},
    "run.reset": {"to_node": "3"},
    "attempt.finished": {**_FENCE, "outcome": "completed", "output": 1},
    "attempt.heartbeat": _FENCE,
    "wakeup": {},
}
_HUGE = "h" * 70_000
_WRONG: dict[str, tuple[Any, ...]] = {
    "workflow": (7, None, "", "no name!", "n" * 129, ["chain"], {}),
    "start_id": ("", 7, "s" * 257, _HUGE, "\0"),
    "on_conflict": ("restart", 1, "restart_if_failed"),
    "run_timeout_ms": (-1, "1", 1.5, 10**15, 10**400),
    "memo": (7, "text", [1]),
    "name": (None, 7, "", "ü", "n" * 129),
    "signal_id": ("", "s" * 257, _HUGE, {}),
    "command_id": ("", "s" * 257, _HUGE, "\0"),
    "to_node": (None, "", 3, "n" * 257, _HUGE),
    "execution": (0, -1, 2**31, 2**63, 10**400, "1", 1.5, True, None),
    "generation": (0, -1, 2**31, 2**64, 10**400, "1", None),
    "node_id": ("", 3, None, "n" * 257, _HUGE, "a\0b"),
    "outcome": ("done", None, 1),
    "run_id": (7, [], {}, False),
}
"""By field: values that are of another type, or out of range, huge ids among them."""
_FIELDS: dict[str, tuple[str, ...]] = {
    "run.start": ("workflow", "start_id", "on_conflict", "run_timeout_ms", "memo", "run_id"),
    "run.signal": ("name", "signal_id", "run_id"),
    "run.reset": ("to_node", "command_id", "run_id"),
    "attempt.finished": ("execution", "generation", "node_id", "outcome", "run_id"),
    "attempt.heartbeat": ("execution", "generation", "node_id", "run_id"),
    "wakeup": ("run_id",),
}


@dataclass(frozen=True)
class Bad:
    """One record, and why it may be set aside."""

    key: bytes | None
    value: bytes | None
    reasons: frozenset[str]
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def records(topic: Topic, count: int, rng: random.Random) -> list[Bad]:
    """So many records for a topic, of all kinds that there are."""
    source = _Source(topic, rng)
    makers: list[Callable[[], Bad]] = [source.noise, source.cut_json, source.cut_avro, source.misplaced, source.untyped]
    makers += [
        source.wrong,
        source.wrong,
        source.deep,
        source.bad_key,
        source.mismatch,
        source.odd_json,
        source.wire,
        source.burdened,
    ]
    found = list(source.oversized())
    while len(found) < count:
        found.append(rng.choice(makers)())
    rng.shuffle(found)
    return found


class _Source:
    def __init__(self, topic: Topic, rng: random.Random) -> None:
        self._topic, self._rng = topic, rng

    def _valid(self, *types: str) -> dict[str, Any]:
        kind = self._rng.choice(types or _TYPES[self._topic])
        return {"type": kind, **_VALID[kind]}

    def _bad(self, value: bytes | None, *reasons: str, key: bytes | None = None) -> Bad:
        headers = (
            [("traceparent", b"00-1-2-03"), ("x", b"y" * self._rng.randrange(9))] if self._rng.random() < 0.2 else []
        )
        return Bad(key or f"ghost-{self._rng.randrange(500)}".encode(), value, frozenset(reasons), headers)

    def noise(self) -> Bad:
        """Random bytes, some behind a beginning that looks like something; nothing at all; null."""
        begins = self._rng.choice([b"", b"", b"\0", b"\xc3\x01", b"{", b" ", b'{"type":'])
        value = begins + self._rng.randbytes(self._rng.randrange(1, 200))
        if self._rng.random() < 0.1:
            return self._bad(*self._rng.choice([(None, "tombstone"), (b"", "undecodable")]))
        return self._bad(value, "undecodable", "unknown_schema")

    def cut_json(self) -> Bad:
        text = json.dumps(self._valid()).encode()
        return self._bad(text[: self._rng.randrange(1, len(text))], "undecodable")

    def cut_avro(self) -> Bad:
        names = [name for name in _AVRO if name.startswith(_TYPES[self._topic])]
        value = _AVRO[self._rng.choice(names)]
        return self._bad(
            value[: self._rng.randrange(1, len(value))], "undecodable", "unknown_schema", key=_KEY.encode()
        )

    def misplaced(self) -> Bad:
        """Good records of another topic, as JSON, Avro, or in the format of a registry that is not there."""
        if self._rng.random() < 0.2:
            return self._bad(self._rng.choice(_CONFLUENT), "unknown_schema", key=_KEY.encode())
        if self._rng.random() < 0.4:
            name = self._rng.choice([name for name in _AVRO if not name.startswith(_TYPES[self._topic])])
            return self._bad(_AVRO[name], "unknown_type", key=_KEY.encode())
        other = self._rng.choice([t for topic, types in _TYPES.items() if topic != self._topic for t in types])
        return self._bad(json.dumps(self._valid(other)).encode(), "unknown_type")

    def untyped(self) -> Bad:
        kind = self._rng.choice(["run.begin", "", None, 7, "Run.Start", ["run.start"], _HUGE])
        body = self._rng.choice([{**self._valid(), "type": kind}, {"workflow": "chain"}, {}])
        return self._bad(json.dumps(body).encode(), "unknown_type", "invalid_field")

    def wrong(self) -> Bad:
        """A field of a wrong type or out of its range, or missing where it must be."""
        kind = self._rng.choice([kind for kind in _TYPES[self._topic] if kind in _FIELDS])
        name = self._rng.choice(_FIELDS[kind])
        body = {**self._valid(kind), name: self._rng.choice(_WRONG[name])}
        if self._rng.random() < 0.1 and (required := _VALID[kind].keys() - {"input", "payload", "output"}):
            body = self._valid(kind)
            del body[self._rng.choice(sorted(required))]
        return self._bad(json.dumps(body).encode(), "invalid_field", "undecodable")

    def deep(self) -> Bad:
        depth = self._rng.choice([200, 201, 1_000, 5_000]) if self._rng.random() < 0.99 else 100_000
        opened, closed = self._rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
        start = json.dumps(self._valid()).encode()[:-1]
        return self._bad(start + b',"x":' + opened * depth + b"1" + closed * depth + b"}", "undecodable")

    def bad_key(self) -> Bad:
        key = self._rng.choice([None, b"", b"k" * 513, b"k" * 20_000, b"\xff\xfe", b"a\0b", "ü".encode() * 257])
        reason = "null_key" if key is None else "bad_key"
        return replace(self._bad(json.dumps(self._valid()).encode(), reason), key=key)

    def mismatch(self) -> Bad:
        body = {**self._valid(), "run_id": self._rng.choice(["another", "", _HUGE, "ghost", "a\0b"])}
        return self._bad(json.dumps(body).encode(), "run_id_mismatch")

    def odd_json(self) -> Bad:
        """What some JSON writers let pass: NaN, half a surrogate pair, bytes that are no UTF-8, more than one object."""
        text = json.dumps(self._valid()).encode()
        odd = [b"NaN", b"Infinity", b"01", b"'x'", b'"\xff"', b'"\xed\xa0\x80"', b"\\u0031", b"nul", b'"\x01"']
        return self._bad(
            self._rng.choice(
                [text + b"}", text * 2, b"\xef\xbb\xbf" + text, b"[" + text + b"]", text[:-1] + b",}"]
                + [text[:-1] + b',"x":' + each + b"}" for each in odd]
            ),
            "undecodable",
        )

    def wire(self) -> Bad:
        bad = self._bad(json.dumps(self._valid()).encode(), "unknown_wire")
        bad.headers.append(("ductor-wire", self._rng.choice([b"2", b"", b"one", b"1.0"])))
        return bad

    def burdened(self) -> Bad:
        """A start that would have more carried along than there may be."""
        if self._topic != "run-events":
            return self.wire()
        bad = self._bad(json.dumps(self._valid("run.start")).encode(), "invalid_field")
        count, size = self._rng.choice([(33, 1), (2, 5_000), (1, 8_193)])
        bad.headers.extend((f"ductor-ctx-{n}", b"c" * size) for n in range(count))
        return bad

    def oversized(self) -> Iterator[Bad]:
        """A record, a payload, details beyond their limits."""
        for size in (1_000_001, 1_040_000):
            yield self._bad(self._rng.randbytes(size), "oversized")
        start = {"type": "run.start", "workflow": "chain", "input": "x" * 900_000}
        beat = {"type": "attempt.heartbeat", **_FENCE, "details": "x" * 16_384}
        by_topic = {"run-events": start, "attempt-results": beat}
        if self._topic in by_topic:
            yield self._bad(json.dumps(by_topic[self._topic]).encode(), "oversized")
