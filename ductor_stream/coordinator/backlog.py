"""How much may wait for a run: beyond it a signal is set aside, so that no sender can fill its owner's memory (R10, R11)."""

from __future__ import annotations

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.engine.events import SignalReceived
from ductor_stream.engine.state import RunState
from ductor_stream.errors import DataError


class Backlog:
    """The signals that a run has not taken, as one batch adds to them. Counted when the first signal comes."""

    def __init__(self, config: CoordinatorConfig, run_id: str, state: RunState | None) -> None:
        self._config, self._run_id, self._state = config, run_id, state
        self._count: int | None = None
        self._bytes = 0

    def refusal(self, signal: SignalReceived) -> DataError | None:
        """Why the run cannot have this signal, or None: then it is counted. An ended run answers for itself."""
        state, config = self._state, self._config
        if state is None or state.closed:
            return None
        if self._count is None:
            self._count, self._bytes = len(state.signals), sum(len(each.payload) for each in state.signals)
        if self._count >= config.signals_limit:
            return DataError("buffer_full", f"{self._count:,} signals wait for run {self._run_id} to take them")
        if self._bytes + len(signal.payload) > config.signals_bytes:
            return DataError(
                "buffer_full", f"{self._bytes:,} bytes of signals wait for run {self._run_id} to take them"
            )
        self._count += 1
        self._bytes += len(signal.payload)
        return None
