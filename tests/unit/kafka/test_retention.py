"""How long a record may be read again: whole segments go, or nothing does."""

from __future__ import annotations

import pytest

from ductor_stream.kafka.retention import FOREVER, _kept


@pytest.mark.parametrize(
    ("topic", "inbound", "kept"),
    [
        ({"retention.ms": "100", "segment.ms": "7"}, True, 107),
        ({"retention.ms": "100", "segment.ms": "7"}, False, 100),
        ({"retention.ms": "-1", "segment.ms": "7"}, True, FOREVER),
        ({"retention.ms": "100", "segment.ms": "7", "cleanup.policy": "compact"}, True, FOREVER),
        ({"retention.ms": "100", "segment.ms": "7", "cleanup.policy": "compact,delete"}, True, 107),
    ],
)
def test_of_inbound_topics_a_segment_counts_too(topic: dict[str, str], inbound: bool, kept: int) -> None:
    assert _kept(topic, inbound=inbound) == kept
