"""A run that kills its owner (protocol 23): endless C call, memory without end, segmentation fault.

After an owner has died, the next one takes its first inputs one at a time and notes in the partition's
row which run it is about to tick. A run that was noted at two deaths in a row is suspended without its code being
run again, and the partition goes on (R11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.work import Entry
from ductor_stream.engine.state import Parked
from ductor_stream.ports import RunStore, Taken
from ductor_stream.telemetry.logs import get_logger

_log = get_logger(__name__)

DEATHS = 2
"""Deaths at which the same run was noted: one may be somebody else's kill -9 at that moment, two in a row are not."""


class Suspects:
    """What is known of runs that may have killed an owner, and how careful this one is therefore."""

    def __init__(self, config: CoordinatorConfig, store: RunStore) -> None:
        self._config, self._store = config, store
        self._careful = 0
        self._deaths: dict[str, int] = {}
        self._noted: dict[int, str] = {}
        self._tokens: set[str] = set()

    def taken(self, found: Taken) -> None:
        """A partition was taken: look how its last owner ended. Our own last token is no death."""
        died = not found.clean and found.last_token not in self._tokens
        self._tokens.add(found.token)
        if not died:
            return
        self._careful = self._config.batch_limit
        if found.suspect is not None:
            self._noted[found.partition] = found.suspect
            self._deaths[found.suspect] = found.deaths + 1
            _log.warning("the last owner died over a run", run_id=found.suspect, deaths=found.deaths + 1)

    @property
    def limit(self) -> int:
        """How many inputs may be taken at a time."""
        return 1 if self._careful > 0 else self._config.batch_limit

    def parked(self, run_id: str, digest: str) -> Parked | None:
        """Why this run's code must not be run again, or None."""
        deaths = self._deaths.get(run_id, 0)
        if deaths < DEATHS:
            return None
        return Parked("died", f"its owner died {deaths} times while it was ticked; deploy other code for it", digest)

    def note(self, entries: Sequence[Entry], owned: Mapping[int, Owned]) -> None:
        """Before a careful tick: write down whose it is. Raises StoreUnavailable."""
        if self._careful <= 0 or not entries:
            return
        self._careful -= len(entries)
        entry = entries[0]
        self._write(owned[entry.partition], entry.run_id)
        self._noted[entry.partition] = entry.run_id

    def survived(self, run_ids: Sequence[str], owned: Mapping[int, Owned]) -> None:
        """These runs were ticked and committed: they are not the ones."""
        if not self._noted and not self._deaths:
            return
        cleared = {run_id for run_id in run_ids if self._deaths.pop(run_id, 0)}
        for partition, noted in list(self._noted.items()):
            # While it is careful, the next note replaces this one; but what is said of deaths must go at once.
            if noted in cleared or (self._careful <= 0 and noted not in self._deaths):
                del self._noted[partition]
                if partition in owned:
                    self._write(owned[partition], None)

    def _write(self, owned: Owned, run_id: str | None) -> None:
        deaths = self._deaths.get(run_id, 0) if run_id is not None else 0
        self._store.note(owned.partition, owned.token, owned.epoch, run_id, deaths)
