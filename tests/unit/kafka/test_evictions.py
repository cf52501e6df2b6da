"""Who is evicted under his stable name: by a rival that lives, or by a broker that has lost his last join."""

from __future__ import annotations

import pytest

from ductor_stream.kafka import options
from ductor_stream.kafka.options import RIVAL_SECONDS, Evictions


def test_only_a_rival_evicts_again_and_again_and_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0.0
    monkeypatch.setattr(options.time, "monotonic", lambda: at)
    evictions, told = Evictions(), []
    for at in (5.0, 5.0 + RIVAL_SECONDS, 6.0 + RIVAL_SECONDS, 60.0, 64.0, 68.0):
        told.append(evictions.again())
    assert told == [False] * 5 + [True]
