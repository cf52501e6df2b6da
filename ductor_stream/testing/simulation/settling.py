"""The end of an episode: whether the world is at rest, and what must be true of it then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductor_stream.engine.state import state_bytes
from ductor_stream.outcomes import REJECTED
from ductor_stream.protocol import headers
from ductor_stream.testing.simulation import checks
from ductor_stream.testing.simulation.memory_database import Database
from ductor_stream.testing.simulation.processes import Process
from ductor_stream.testing.simulation.world import Violation

if TYPE_CHECKING:
    from ductor_stream.testing.simulation.episode import Episode


class Rest:
    """Looks at all of a world."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def unsettled(self) -> str:
        """What is still under way."""
        database = self._episode.database
        open_runs = [
            f"{run.run_id} {run.status} {run.reason} {waits_of(database, run.run_id)}"
            for run in database.runs.values()
            if run.closed_at is None
        ]
        outbox = {p: list(rows) for p, rows in database.outbox.items() if rows}
        inbox = [row.source for rows in database.inbox.values() for row in rows.values()]
        flying = [(log.flying[0].record.topic, len(log.flying)) for log in self._episode.logs() if log.flying]
        attempts = [f"{a.run_id} {a.execution} {a.node_id}" for a in database.open_attempts.values()]
        left = {"open": open_runs, "outbox": outbox, "inbox": inbox, "flying": flying, "attempts": attempts}
        left["input not applied"] = self._unapplied()
        return ", ".join(f"{name} {what}" for name, what in left.items() if what)

    def reached(self) -> bool:
        """Whether nothing is under way any more."""
        database = self._episode.database
        if (
            self._episode.fleet.next_us() is not None
            or self._episode.clients.next_us() is not None
            or self._episode.agenda
        ):
            return False
        if any(database.outbox.values()) or any(database.inbox.values()) or database.open_attempts:
            return False
        if not self._episode.crew.rests():
            return False
        if any(log.flying for log in self._episode.logs()) or any(
            process.log.news() for process in self._episode.processes
        ):
            return False
        return all(run.closed_at is not None for run in database.runs.values()) and not self._unapplied()

    def _unapplied(self) -> list[str]:
        """Messages of clients that have left no trace, though their topic is still there."""
        lost: list[str] = []
        database = self._episode.database
        aside = self._set_aside()
        for sent in self._episode.clients.sent:
            if sent.topic_id in self._episode.recreated or (sent.partition, sent.offset) in aside:
                continue
            if sent.kind == "start":
                applied = sent.run_id in database.runs
            else:
                applied = (sent.run_id, sent.kind, sent.id) in database.messages
            if not applied:
                lost.append(f"{sent.kind} {sent.id} at {sent.partition}/{sent.offset}")
        return lost

    def _set_aside(self) -> set[tuple[int, int]]:
        """Partition and offset of clients' messages that are in the dead letters, since data of their run was poison."""
        names = self._episode.broker.names
        letters = (dict(kept.headers) for kept in self._episode.broker.topics[names.dead_letters].partitions[0].records)
        return {
            (int(letter[headers.SOURCE_PARTITION] or b""), int(letter[headers.SOURCE_OFFSET] or b""))
            for letter in letters
            if letter.get(headers.REASON) == b"poisoned_run"
            and letter[headers.SOURCE_TOPIC] == names.run_events.encode()
        }

    def check(self) -> None:
        """Raises Violation."""
        for checker in self._episode.checkers:
            checker.finish(self._episode.database)
        for process in self._episode.processes:
            for run_id in self._episode.database.runs:
                self._compare(process, run_id)

        self._told()

    def _told(self) -> None:
        """Clients have heard how their runs ended, and it is so."""
        aside = self._set_aside()
        for target, (topic_id, *place), future in self._episode.clients.waiting:
            if topic_id in self._episode.recreated or tuple(place) in aside:
                continue
            if not future.done():
                raise Violation("R9", f"{target.run_id}: the client of {target.question} still waits")
            outcome, run = future.result(), self._episode.database.runs[target.run_id]
            if outcome.execution == run.execution and outcome.status not in (run.status, REJECTED):
                raise Violation("R9", f"{target.run_id}: a client was told {outcome.status}, it is {run.status}")
            if outcome.status == "completed" and outcome.execution == run.execution and outcome.result != run.result:
                raise Violation("R9", f"{target.run_id}: a client was told another result")

    def _compare(self, process: Process, run_id: str) -> None:
        """What an owner has in memory is what anybody would rebuild."""
        cached = process.coordinator.cache.peek(run_id)
        if cached is None or cached.state is None or cached.record_version != self._episode.database.version_of(run_id):
            return
        rebuilt = checks.state_of(self._episode.database, run_id)
        if rebuilt is None or state_bytes(rebuilt) != state_bytes(cached.state):
            raise Violation("R2", f"{run_id}: rebuilt from its records it is not what its owner has")


def waits_of(database: Database, run_id: str) -> list[str]:
    """The signals that a run waits for."""
    state = checks.state_of(database, run_id)
    if state is None:
        return []
    return sorted({node.name for node in state.nodes.values() if node.kind == "signal"})
