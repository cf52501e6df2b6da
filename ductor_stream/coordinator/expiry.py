"""Signals and commands that waited for their run in vain: after their time to live they become dead letters (protocol 24)."""

from __future__ import annotations

from collections.abc import Mapping

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.work import Work
from ductor_stream.errors import DataError
from ductor_stream.ports import Clock, RunStore
from ductor_stream.protocol.inbox import decode_received

_PAGE = 500
"""Messages per partition and turn; a full page is followed by another one in the next turn."""


class Expiry:
    """Looks through the buffered messages of the owned partitions now and then."""

    def __init__(self, config: CoordinatorConfig, ports: tuple[RunStore, Clock], letters: DeadLetters) -> None:
        self._config = config
        self._store, self._clock = ports
        self._letters = letters
        self._next_at = 0.0

    def take(self, work: Work, owned: Mapping[int, Owned]) -> None:
        """Add the expired ones to a turn: its commit clears their bodies and keeps their ids, then they are produced."""
        now = self._clock.monotonic()
        if now < self._next_at or not owned:
            return
        self._next_at = now + self._config.expiry_sweep_s
        busy = {entry.run_id for entry in work.entries}
        for partition in owned:
            page = self._store.expired_messages(partition, self._clock.now(), _PAGE)
            if len(page) == _PAGE:
                self._next_at = now
            for run_id, message in page:
                if run_id in busy:
                    continue  # its start may be among them: then the message is still applied
                hours = self._config.buffered_ttl_ms / 3_600_000
                error = DataError("expired", f"its run was not started within {hours:g} h")
                self._letters.add(work, partition, decode_received(message.body), error)
                work.released.append((run_id, message.kind, message.id))
