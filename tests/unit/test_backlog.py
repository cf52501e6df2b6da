"""How much may wait for a run (R10, R11)."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.backlog import Backlog
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.engine.events import RunStarted, SignalReceived
from ductor_stream.engine.reduce.start import first
from ductor_stream.engine.state import RunState, SignalArrived

CONFIG = CoordinatorConfig(signals_limit=3, signals_bytes=10)


def state(*payloads: bytes) -> RunState:
    found = first("r", RunStarted("wf", "1", b"null", "s"), 1)
    found.signals = [SignalArrived(str(n), "word", payload) for n, payload in enumerate(payloads)]
    return found


def signal(payload: bytes = b"1") -> SignalReceived:
    return SignalReceived("id", "word", payload)


def test_count_and_bytes_include_what_the_batch_has_added() -> None:
    backlog = Backlog(CONFIG, "r", state(b"1"))
    assert backlog.refusal(signal()) is None
    assert backlog.refusal(signal()) is None
    refused = backlog.refusal(signal())
    assert refused is not None
    assert (refused.reason, str(refused)) == ("buffer_full", "3 signals wait for run r to take them")


def test_a_small_one_still_fits_where_a_large_one_does_not() -> None:
    backlog = Backlog(CONFIG, "r", state(b"12345678"))
    refused = backlog.refusal(signal(b"123"))
    assert refused is not None
    assert str(refused) == "8 bytes of signals wait for run r to take them"
    assert backlog.refusal(signal(b"12")) is None


def test_an_ended_run_answers_for_itself() -> None:
    ended = state(b"1", b"1", b"1")
    ended.header = msgspec.structs.replace(ended.header, status="completed")
    assert Backlog(CONFIG, "r", ended).refusal(signal()) is None
    assert Backlog(CONFIG, "r", None).refusal(signal()) is None
