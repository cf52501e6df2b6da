"""The outlet: results and heartbeats on their way to the broker, sent again until it has them.

Delivery: at least once while the process lives. What it does not get rid of is bounded by whoever asks
``congested`` before taking more work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from ductor_stream.ports import Outgoing, TaskLog, Undeliverable
from ductor_stream.telemetry.logs import get_logger

_log = get_logger(__name__)

MOST_RECORDS = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Unacknowledged results beyond which no more work is taken: the broker is slow or away, and memory is finite."""

Settled = Callable[[Undeliverable | None], None]
"""Called once: with None when the broker has the record, else with why it never will."""


class Outlet:
    """Sends records through the log. Used from any thread."""

    def __init__(self, log: TaskLog) -> None:
        self._task_log = log
        self._lock = threading.Lock()
        self._open = 0
        self._open_bytes = 0
        self._again: deque[tuple[Outgoing, Settled]] = deque()

    @property
    def open(self) -> int:
        """Results that the broker has not acknowledged yet."""
        return self._open

    @property
    def congested(self) -> bool:
        """Whether so much is unacknowledged that no more work should be taken."""
        return self._open >= MOST_RECORDS or self._open_bytes >= MOST_BYTES

    def send(self, record: Outgoing, settled: Settled) -> None:
        """Send until the broker has it; ``settled`` hears of that, or that it refuses the record for good."""
        with self._lock:
            self._open += 1
            self._open_bytes += len(record.value)
        self._task_log.produce(record, partial(self._heard, record, settled))

    def post(self, record: Outgoing) -> None:
        """Send a record about which nobody waits to hear."""
        self.send(record, _mourn)

    def send_once(self, record: Outgoing, taken: Callable[[], None]) -> None:
        """Send a record whose loss does no harm, a heartbeat; ``taken`` is called when the broker has it."""
        self._task_log.produce(record, partial(_heard_once, taken))

    def send_again(self) -> None:
        """Send anew what the broker has not taken; called from time to time, so that failures do not spin."""
        for _ in range(len(self._again)):
            record, settled = self._again.popleft()
            self._task_log.produce(record, partial(self._heard, record, settled))

    def _heard(self, record: Outgoing, settled: Settled, failed: Undeliverable | None) -> None:
        if failed is not None and not failed.permanent:
            _log.warning("a record was not taken and is sent again", **_about(failed))
            self._again.append((record, settled))
            return
        with self._lock:
            self._open -= 1
            self._open_bytes -= len(record.value)
        settled(failed)


def _heard_once(taken: Callable[[], None], failed: Undeliverable | None) -> None:
    if failed is not None:
        _log.debug("a heartbeat was not taken", **_about(failed))
    else:
        taken()


def _mourn(refused: Undeliverable | None) -> None:
    if refused is not None:
        _log.error("the broker refuses a record", **_about(refused))


def _about(failed: Undeliverable) -> dict[str, str]:
    record = failed.record
    return {"run_id": record.key.decode("utf-8", "replace"), "topic": record.topic, "error": failed.error}
