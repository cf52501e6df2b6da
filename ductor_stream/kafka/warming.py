"""Waking the group coordinators of a broker that has just been made."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import KafkaException

from ductor_stream.kafka.options import open_admin
from ductor_stream.kafka.topics import AdminConfig

_AGAIN_S = 0.05
_WITHIN_S = 3.0
"""A broker makes its topic of offsets in a tenth of a second. One that takes longer is not waited for: members join
all the same, later."""


def wake_groups(config: AdminConfig, groups: Sequence[str]) -> None:
    """Ask for these groups until the broker knows where they are, best effort.

    The first question for a group makes the broker create its topic of offsets. A member that asks meanwhile is
    told to come back, which its client does after one to three seconds; this asks again at once.
    """
    admin = open_admin(config.bootstrap, config.options)
    deadline = time.monotonic() + _WITHIN_S
    left = list(groups)
    while left and time.monotonic() < deadline:
        asked = admin.describe_consumer_groups(left, request_timeout=_WITHIN_S)
        left = [group for group, answer in asked.items() if not _known(answer)]
        if left:
            time.sleep(_AGAIN_S)


def _known(answer: object) -> bool:
    try:
        answer.result(_WITHIN_S)  # type: ignore[attr-defined]
    except (KafkaException, TimeoutError):
        return False
    return True
