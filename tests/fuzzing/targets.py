"""What is fuzzed: every decoder of bytes that others wrote. A target returns, or raises what is a fault.

``test_targets.py`` runs them with hypothesis in CI, ``coverage_guided.py`` with atheris for as long as you like.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from unit.engine.histories import CURRENT, Golden
from wire_cases import TOPICS, FixedRegistry, records

from ductor_stream.coordinator.cache import cached_from
from ductor_stream.errors import DataError
from ductor_stream.ports import INBOUND, LoadedRun, Received
from ductor_stream.protocol import headers, json_text
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.lifecycle import decode_lifecycle
from ductor_stream.protocol.vocabulary import REASONS
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.worker.window import Window, decode_losses, decode_runs

_decoder = InboundDecoder(TOPICS, FixedRegistry())
_codec = WorkerCodec(registry=FixedRegistry())
Headers = list[tuple[str, bytes | None]]


def _only_data_errors(decode: Callable[[], object]) -> None:
    try:
        decode()
    except DataError as error:
        assert error.reason in REASONS and str(error)


def _split(data: bytes) -> tuple[bytes, bytes, Headers]:
    """A record out of one string: its key, its value, and a header or two."""
    if not data:
        return b"", b"", []
    length = data[0] % 24
    key, rest = data[1 : 1 + length], data[1 + length :]
    if not rest or rest[0] % 4:
        return key, rest[1:], []
    cut = rest[1:9]
    name = ["ductor-wire", "traceparent", "ductor-ctx-a", "ce_type"][rest[0] // 4 % 4]
    return key, rest[9:], [(name, cut), ("ductor-wire", b"1")]


def inbound(data: bytes) -> None:
    """A record of an inbound topic, as JSON, Avro, or framed for a schema registry."""
    topic = INBOUND[len(data) % len(INBOUND)]
    key, value, given = _split(data)
    _only_data_errors(lambda: _decoder.decode(Received(topic, 1, 2, key, value, given), "tid"))


def task(data: bytes) -> None:
    """A task, or a stop."""
    key, value, given = _split(data)
    _only_data_errors(lambda: _codec.decode_task(key, value, given))
    _only_data_errors(lambda: _codec.decode_stop(key, value, given))


def lifecycle(data: bytes) -> None:
    """What a client reads."""
    key, value, given = _split(data)
    _only_data_errors(lambda: decode_lifecycle(key, value, given))
    _only_data_errors(lambda: decode_lifecycle(key, value, [("ce_type", b"ductor.run.failed")]))


def wire_headers(data: bytes) -> None:
    """Headers alone."""
    names = ["ductor-wire", "traceparent", "tracestate", "ductor-ctx-a", "ductor-ctx-", "x"]
    given: Headers = [(names[part[0] % len(names)], part[1:] or None) for part in data.split(b"\n") if part]
    _only_data_errors(lambda: headers.check_wire(given))
    _only_data_errors(lambda: headers.context_of(given))


def state(data: bytes) -> None:
    """A run's header and records, as they may lie damaged in the database: told as a problem, never raised (R11)."""
    end = 2 + int.from_bytes(data[:2], "big")
    found = cached_from(LoadedRun("r", 3, data[2:end], [data[end:]], []))
    assert found.problem or found.state is not None


def positions(data: bytes) -> None:
    """The metadata of a committed offset: whatever cannot be read means that nothing more is done."""
    text = data.decode("utf-8", "replace")
    for start, end in decode_runs(7, text):
        assert 7 <= start < end
    for start, end, _ in decode_losses(7, text):
        assert 7 <= start <= end
    Window.opened(7, text).metadata()


def json_repair(data: bytes) -> None:
    """JSON of others, before msgspec sees it."""
    assert json_text.nesting(data) >= 0
    json_text.without_lone_surrogates(data)


def seeds(name: str) -> list[bytes]:
    """Where a search begins: what this release writes."""
    if name != "state":
        return [b"\1k\1" + record.value for _, record in records()]
    golden = [msgspec.msgpack.decode(path.read_bytes(), type=Golden) for path in sorted(CURRENT.glob("*.bin"))]
    return [len(each.header).to_bytes(2, "big") + each.header + entry for each in golden for entry in each.entries]


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (inbound, task, lifecycle, wire_headers, state, positions, json_repair)
}
