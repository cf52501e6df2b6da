"""The watchdog: tasks that got lost on their way are sent again, and runs that await nothing are failed (R9, protocol 15).

A task is lost, not waiting, when its topic has passed it (workers have committed beyond it, or it was deleted) and
nothing was heard of its attempt, though results were read up to where they ended after that. Offsets tell, not clocks:
a mark is where a topic ended when all that was dispatched before the mark's time had been acknowledged. A queue that
is slow or has no workers does not pass its marks, and gets no duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, islice

import msgspec

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.caught_up import RESULTS
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.undelivered import Undelivered
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AnyEvent, AttemptLost, AttemptTimedOut, Condemned
from ductor_stream.engine.ids import Fence, partition_of
from ductor_stream.engine.state import Node, RunState
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import Clock, EventLog, RunStore, TaskPlace, TaskStand
from ductor_stream.protocol.outbound import task_partition
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_PAGE = 100
"""Open runs looked at per turn: the loop stays live."""

_PAGE_BYTES = 2_000_000
"""Of their records, whatever the number of runs: rebuilding those of so many takes some 50 ms. One run may have more."""

_RAREST = 6
"""While nothing is found, the runs are looked through up to so many times more rarely."""


class Mark(msgspec.Struct, frozen=True):
    """Everything that was dispatched up to ``at`` (ms) for these partitions (by epoch) stands before ``end``."""

    at: int
    epochs: Mapping[int, int]
    end: int = 0


class _Note(msgspec.Struct, frozen=True):
    """What must be acknowledged before a question to the broker can speak for all that was dispatched up to ``at``."""

    at: int
    epochs: Mapping[int, int]
    seqs: Mapping[int, int]
    """Partition -> its last outbox row."""


class _Look(msgspec.Struct):
    """A look through the open runs under way, partition by partition, with the marks that were passed before it."""

    partitions: list[int]
    passed: Mapping[TaskPlace, Mark]
    after: str = ""
    results_end: int | None = None
    found: int = 0


class Watchdog:
    """Adds to a turn what nobody else would ever notice."""

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        ports: tuple[RunStore, EventLog, Clock],
        memory: tuple[RunCache, Heartbeats],
        outgoing: tuple[Dispatcher, Undelivered],
        metrics: Metrics,
    ) -> None:
        self._config, self._topics, self._metrics = config, topics, metrics
        self._store, self._log, self._clock = ports
        self._cache, self._heartbeats = memory
        self._dispatcher, self._undelivered = outgoing
        self._ask_at = 0.0
        self._note: _Note | None = None
        self._question: tuple[_Note, Callable[[], Mapping[TaskPlace, TaskStand] | None]] | None = None
        self._stands: dict[TaskPlace, TaskStand] = {}
        self._marks: dict[TaskPlace, Mark] = {}
        self._passed: dict[TaskPlace, Mark] = {}
        self._deleted: dict[TaskPlace, int] = {}
        """Where records were deleted unread, and when that was noticed: the runs are looked through until a mark covers it."""
        self._epochs: Mapping[int, int] = {}
        self._quiet = 1
        self._look_at: float | None = None
        self._look: _Look | None = None

    def take(self, work: Work, owned: Mapping[int, Owned], limit: int) -> None:
        """Add to a turn what is found lost, as long as it has fewer than ``limit`` inputs."""
        now = self._clock.monotonic()
        if self._look_at is None:
            self._look_at = now + self._config.watch_s
        if now >= self._ask_at:
            self._ask_at = now + self._config.sweep_s
            self._ask(owned)
        self._hear(now)
        if self._look is None and now >= self._look_at and owned:
            self._look = _Look(sorted(owned), dict(self._passed))
            self._look_at = now + self._config.watch_s * self._quiet
        if self._look is not None and len(work.entries) < limit:
            self._go_on(self._look, work, owned, now)

    # -- the topics -------------------------------------------------------------------------

    def _ask(self, owned: Mapping[int, Owned]) -> None:
        """Ask where the topics end, once all is acknowledged that had been dispatched when this was last called."""
        epochs = {partition: mine.epoch for partition, mine in owned.items()}
        if epochs != self._epochs:
            # What was found before does not speak for partitions that have come: it is found out anew.
            self._epochs, self._note = epochs, None
            self._stands.clear()
        if self._question is not None or not owned or not self._log.healthy():
            return
        note = self._note
        if note is not None:
            if any(self._dispatcher.confirmed(partition) < seq for partition, seq in note.seqs.items()):
                return
            self._question = (note, self._log.ask_tasks())
        at = self._clock.now() - self._config.lost_after_ms
        self._note = _Note(at, epochs, {partition: mine.outbox_seq for partition, mine in owned.items()})

    def _hear(self, now: float) -> None:
        if self._question is None:
            return
        note, question = self._question
        stands = question()
        if stands is None:
            return
        self._question = None
        for place, stand in stands.items():
            self._heard(place, stand, Mark(note.at, note.epochs, stand.end), now)

    def _heard(self, place: TaskPlace, stand: TaskStand, fresh: Mark, now: float) -> None:
        before = self._stands.get(place)
        self._stands[place] = stand
        read = before.passed if before is not None else max(0, stand.committed)
        if stand.start > read and (before is None or stand.start > before.start):
            _log.warning("tasks deleted before they were read", topic=place[0], partition=place[1], before=stand.start)
            self._deleted[place] = self._clock.now()
        mark = self._marks.get(place)
        if mark is not None and stand.passed >= mark.end and stand.end >= mark.end:
            self._passed[place] = mark
            mark = None
            if place in self._deleted:
                self._quiet, self._look_at = 1, now
                if self._passed[place].at >= self._deleted[place] and self._passed[place].epochs == self._epochs:
                    del self._deleted[place]
        if mark is None or stand.end < mark.end:  # another topic by now: the take-over sees to what was in the old one
            self._marks[place] = fresh

    # -- the runs ---------------------------------------------------------------------------

    def _go_on(self, look: _Look, work: Work, owned: Mapping[int, Owned], now: float) -> None:
        if not look.partitions:
            self._look = None
            self._quiet = 1 if look.found else min(2 * self._quiet, _RAREST)
            return
        mine = owned.get(look.partitions[0])
        if mine is None:
            look.partitions.pop(0)
            look.after, look.results_end = "", None
            return
        if look.results_end is None:
            try:
                look.results_end = self._log.end_offsets(mine.partition)["attempt-results"]
            except LogUnavailable:
                self._look, self._look_at = None, now + self._config.sweep_s
                return
        read = max(mine.offsets[RESULTS], self._log.reached_end(mine.partition, "attempt-results"))
        if read >= look.results_end:
            self._page(look, work, mine)

    def _page(self, look: _Look, work: Work, mine: Owned) -> None:
        page = self._store.open_runs(mine.partition, _PAGE, look.after, _PAGE_BYTES)
        counts = self._log.partition_counts() if page else {}
        for run_id, cached in chain.from_iterable(runs.items() for runs in self._cache.load(page)):
            state = cached.state
            if state is None or state.header.status != "running":
                continue  # what is paused or suspended says so itself, and sends nothing
            for event in self._found(look, state, mine, counts):
                look.found += 1
                work.entries.append(Entry(run_id, mine.partition, event))
        look.after = page[-1] if page else ""
        if not page:
            look.partitions.pop(0)
            look.after, look.results_end = "", None

    def _found(self, look: _Look, state: RunState, mine: Owned, counts: Mapping[str, int]) -> list[AnyEvent]:
        if not state.nodes and not state.held:
            message = "nothing is awaited: no step, timer, signal or child, and nothing is held"
            return [Condemned("stuck", message)]
        lost = (node for node in state.nodes.values() if self._is_lost(look, state, node, mine, counts))
        return [self._event(state, node) for node in islice(lost, self._config.batch_limit)]

    def _event(self, state: RunState, node: Node) -> AnyEvent:
        fence = Fence(state.header.run_id, state.header.execution, node.node_id, node.generation)
        if node.redrives < self._config.redrives:
            self._metrics.lost_dispatches["redriven"].inc()
            _log.warning("a task was lost, it is sent again", step=node.name, **keys_of(fence))
            return AttemptLost(fence.execution, fence.node_id, fence.generation)
        self._metrics.lost_dispatches["given_up"].inc()
        _log.error("a task was lost each time that it was sent", step=node.name, **keys_of(fence))
        return AttemptTimedOut(fence.execution, fence.node_id, fence.generation, "dispatch_lost")

    def _is_lost(self, look: _Look, state: RunState, node: Node, mine: Owned, counts: Mapping[str, int]) -> bool:
        if node.kind != "step" or node.status != "dispatched" or node.options is None:
            return False
        run_id, execution = state.header.run_id, state.header.execution
        topic = self._topics.tasks(node.options.queue)
        count = counts.get(topic)
        if count is None or topic in self._undelivered.refusing:
            return False
        # By the node, or by the key where the number of partitions was not known when it was sent.
        homes = {task_partition(run_id, execution, node.node_id, count), partition_of(run_id.encode(), count)}
        sent_at = max(node.dispatched_at, node.sent_at)
        for home in homes:
            mark = look.passed.get((topic, home)) if home is not None else None
            if mark is None or mark.at < sent_at or mark.epochs.get(mine.partition) != mine.epoch:
                return False
        heard = self._heartbeats.find((run_id, execution, node.node_id))
        if heard is not None and heard.open.generation == node.generation:
            return False
        return not self._dispatcher.in_process(Fence(run_id, execution, node.node_id, node.generation))
