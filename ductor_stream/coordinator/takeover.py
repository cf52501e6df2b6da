"""What an owner does when partitions come, go, or lose their topics: redrive, and no more than was in flight (R5, R5b)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from ductor_stream.coordinator.cache import Cached, RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.coordinator.dispatch import Dispatcher, Row
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.actions import DispatchAttempt
from ductor_stream.engine.events import Redeployed
from ductor_stream.engine.ids import Fence
from ductor_stream.engine.state import Node, RunState
from ductor_stream.errors import DataError, LogUnavailable
from ductor_stream.ports import (
    INBOUND,
    UNREAD,
    Clock,
    EventLog,
    Inbound,
    LocalWorkers,
    OpenAttempt,
    Outgoing,
    RunStore,
    Taken,
)
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_PAGE = 500
"""Open runs looked at per turn while work is redriven: the loop stays live."""

_PAGE_BYTES = 4_000_000
"""Of their records: rebuilding runs of so many takes some 100 ms."""

_REDRIVING = ""
"""Stands for a task topic's id until its work is redriven: no topic has it, so that a crash begins the redrive anew."""


class Scan(msgspec.Struct):
    """A redrive of all open attempts of a partition under way. ``queues`` None: of every queue.

    ``ids`` are those of the task topics concerned, to be noted when everything has arrived there.
    """

    partition: int
    queues: frozenset[str] | None
    ids: dict[str, str]
    after: str = ""
    read: bool = False
    rows: list[Row] = []


class TakeOver:
    """Begins with what a partition's new owner must do, and watches the topics while it owns it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        definitions: Definitions,
        topics: Topics,
        ports: tuple[RunStore, EventLog, Clock, LocalWorkers | None],
        codec: tuple[Encoder, WorkerCodec, DeadLetters],
        memory: tuple[RunCache, Heartbeats],
        dispatcher: Dispatcher,
        metrics: Metrics,
        partitions: int,
    ) -> None:
        self._config, self._definitions, self._topics = config, definitions, topics
        self._store, self._log, self._clock, self._local = ports
        (self._encoder, self._tasks, self._letters), self._dispatcher, self._metrics = codec, dispatcher, metrics
        self._cache, self._heartbeats = memory
        self._n = partitions
        self._entries: deque[Entry] = deque()
        self._ended: list[tuple[int, str, int, str]] = []
        self._again: list[tuple[int, Outgoing]] = []
        self._unread: list[tuple[int, Inbound, int]] = []
        self._scans: list[Scan] = []
        self._watched_at = 0.0

    # -- a partition was taken ----------------------------------------------------------------

    def begin(self, owned: Owned, found: Taken, recreated: list[str]) -> None:
        """Redrive what the last owner left unconfirmed, and pick up heartbeats and suspended runs."""
        partition = owned.partition
        for seq, body in found.outbox:
            records = self._still_wanted(msgspec.msgpack.decode(body, type=list[Outgoing]))
            self._count(records)
            self._dispatcher.send(partition, seq, records)
        if recreated:
            _log.warning("topics are not those that were read before", partition=partition, topics=recreated)
        self._note_unread(found, recreated)
        if partition >= self._n:
            return  # nobody's home: all there is to it was input, which has been sent on
        self._pick_up(partition, found.open_attempts, found.now)
        self._suspended(partition)
        if recreated:
            self._scan_for(owned, recreated, owned.topic_ids)

    def _note_unread(self, found: Taken, recreated: list[str]) -> None:
        """Of a topic of which nothing was read yet, too, if it is that of the clients: the others carry what is redriven."""
        for short, read in zip(INBOUND, found.offsets, strict=True):
            if self._topics.inbound(short) in recreated and (read != UNREAD or short == "run-events"):
                self._unread.append((found.partition, short, max(read, 0)))

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        gone = frozenset(partitions)
        self._entries = deque(e for e in self._entries if e.partition not in gone)
        self._ended = [row for row in self._ended if row[0] not in gone]
        self._again = [each for each in self._again if each[0] not in gone]
        self._unread = [each for each in self._unread if each[0] not in gone]
        self._scans = [scan for scan in self._scans if scan.partition not in gone]

    def _still_wanted(self, records: list[Outgoing]) -> list[Outgoing]:
        """Without the tasks of attempts that were closed since (protocol 14)."""
        tasks: list[tuple[Outgoing, Fence]] = []
        for record in records:
            if self._topics.queue_of(record.topic) is not None:
                try:
                    tasks.append((record, self._tasks.decode_task(record.key, record.value, record.headers).fence))
                except DataError:
                    continue
        if not tasks:
            return records
        closed: set[int] = set()
        for runs in self._cache.load(dict.fromkeys(fence.run_id for _, fence in tasks)):
            mine = [(record, fence) for record, fence in tasks if fence.run_id in runs]
            closed |= {id(record) for record, fence in mine if _is_closed(runs[fence.run_id], fence)}
        return [record for record in records if id(record) not in closed]

    def _count(self, records: Sequence[Outgoing]) -> None:
        self._metrics.redrives.inc(len(records))
        self._metrics.attempts_redriven.inc(sum(self._topics.queue_of(record.topic) is not None for record in records))

    def _pick_up(self, partition: int, rows: list[OpenAttempt], now: int) -> None:
        """Clocks of attempts start anew (protocol 22); those that ran in a process that is gone are sent again."""
        of_run: dict[str, list[OpenAttempt]] = {}
        for row in rows:
            of_run.setdefault(row.run_id, []).append(row)
        for runs in self._cache.load(of_run):
            for run_id, run in runs.items():
                if not run.problem:  # else whoever can read the run will see to it
                    for row in of_run[run_id]:
                        self._pick_up_one(partition, row, run.state, now)

    def _pick_up_one(self, partition: int, row: OpenAttempt, state: RunState | None, now: int) -> None:
        node = _open_node(state, Fence(row.run_id, row.execution, row.node_id, row.generation))
        if state is None or node is None:
            self._ended.append((partition, row.run_id, row.execution, row.node_id))
        elif row.token is not None:
            # Its row goes in the commit that puts the task into the outbox: never is it in neither.
            self._again.append((partition, self._task(state, node, now)))
            self._ended.append((partition, row.run_id, row.execution, row.node_id))
        else:
            self._heartbeats.hear(msgspec.structs.replace(row, heard_at=now, beat_at=now), node.options)

    def _suspended(self, partition: int) -> None:
        after = ""
        while True:
            page = self._store.suspended_runs(partition, _PAGE, after)
            for run_id, workflow, version in page:
                definition = self._definitions.find(workflow, version)
                if definition is not None:
                    event = Redeployed(definition.digest, definition.version)
                    self._entries.append(Entry(run_id, partition, event))
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _task(self, state: RunState, node: Node, now: int) -> Outgoing:
        assert node.options is not None
        count = self._log.partition_counts().get(self._topics.tasks(node.options.queue))
        header = state.header
        action = DispatchAttempt(header.execution, node)
        return self._encoder.task(header.run_id, header.context, action, now, count)

    # -- every turn ---------------------------------------------------------------------------

    def take(self, work: Work, owned: Mapping[int, Owned], limit: int) -> None:
        """Add to a turn what a take-over still has to apply, as long as it has fewer than ``limit`` inputs."""
        while self._entries and len(work.entries) < limit:
            entry = self._entries.popleft()
            if entry.partition in owned:
                work.entries.append(entry)
        if self._ended:
            work.ended, self._ended = self._ended, []
            work.touched.update(row[0] for row in work.ended)
        for partition, record in self._again:
            self._count([record])
            work.produce(partition, [record])
        self._again.clear()
        self._audit(work, frozenset(owned))
        for scan in list(self._scans):
            self._scan_page(scan)
            if scan.read and all(row.acknowledged for row in scan.rows):
                self._scans.remove(scan)
                mine = owned[scan.partition]
                mine.topic_ids, mine.ids_changed = {**mine.topic_ids, **scan.ids}, True

    def _audit(self, work: Work, partitions: frozenset[int]) -> None:
        for partition, short, offset in [each for each in self._unread if each[0] in partitions]:
            self._letters.lost(work, partition, short, (offset, UNREAD))
        self._unread = [each for each in self._unread if each[0] not in partitions]

    def _scan_page(self, scan: Scan) -> None:
        if scan.read or (scan.rows and not scan.rows[-1].acknowledged):
            return
        page = self._store.open_runs(scan.partition, _PAGE, scan.after, _PAGE_BYTES)
        now = self._clock.now()
        records: list[Outgoing] = []
        for cached in chain.from_iterable(runs.values() for runs in self._cache.load(page)):
            state = cached.state
            if state is None:
                continue
            for node in state.nodes.values():
                if self._lost(scan, state, node):
                    records.append(self._task(state, node, now))
        if records:
            self._count(records)
            scan.rows.append(self._dispatcher.send_again(records, scan.partition))
        scan.read = not page
        scan.after = page[-1] if page else ""

    def _lost(self, scan: Scan, state: RunState, node: Node) -> bool:
        if node.kind != "step" or node.status != "dispatched" or node.options is None:
            return False
        if scan.queues is not None and node.options.queue not in scan.queues:
            return False
        header = state.header
        return not self._dispatcher.in_process(Fence(header.run_id, header.execution, node.node_id, node.generation))

    # -- topics -------------------------------------------------------------------------------

    def watch(self, owned: Mapping[int, Owned]) -> list[int]:
        """Compare topic ids now and then; returns partitions to take anew, since a topic that they read is another one."""
        now = self._clock.monotonic()
        if now - self._watched_at < self._config.sweep_s:
            return []
        self._watched_at = now
        try:
            ids = self._log.topic_ids()
        except LogUnavailable:
            return []  # what is ours stays ours: what timers decide meanwhile waits in the outbox
        anew: list[int] = []
        for partition, mine in owned.items():
            if any(scan.partition == partition for scan in self._scans):
                continue
            changed = [name for name, known in mine.topic_ids.items() if ids.get(name, known) != known]
            if set(changed) & set(self._topics.inbound_names):
                anew.append(partition)
            elif changed:
                self._scan_for(mine, changed, ids)
            elif not ids.keys() <= mine.topic_ids.keys():
                mine.topic_ids, mine.ids_changed = {**mine.topic_ids, **ids}, True
        return anew

    def _scan_for(self, owned: Owned, changed: list[str], ids: Mapping[str, str]) -> None:
        """Lost results: every open attempt. Lost tasks: those of their queues. Other topics carry nothing that is awaited.

        ``ids`` are those that ``changed`` was found in: asked for anew, they may hold a change that nobody has noticed.
        """
        everything = self._topics.attempt_results in changed
        known = {**owned.topic_ids, **ids}
        tasks = [name for name in known if self._topics.queue_of(name) and (everything or name in changed)]
        if tasks:
            _log.warning("open attempts are sent again", partition=owned.partition, topics=tasks)
            queues = frozenset(queue for name in tasks if (queue := self._topics.queue_of(name)))
            arrived = {name: ids[name] for name in tasks if name in ids}
            self._scans.append(Scan(owned.partition, None if everything else queues, arrived))
        owned.topic_ids, owned.ids_changed = {**known, **dict.fromkeys(tasks, _REDRIVING)}, True

    # -- letting go ---------------------------------------------------------------------------

    def hand_over(self, partitions: frozenset[int], owned: Mapping[int, Owned]) -> Work:
        """Attempts that still run in this process: say so, and send their results by the topic (protocol 13)."""
        work = Work()
        # This commit may be the one that notes the new topic ids: then it is the one that tells what was lost, too.
        self._audit(work, partitions)
        now = self._clock.now()
        for fence, partition in self._dispatcher.slow_sync(0.0):
            if partition in partitions and partition in owned:
                row = OpenAttempt(
                    partition, fence.run_id, fence.execution, fence.node_id, fence.generation, None, now, now
                )
                work.handed.append(row)
        for heard in self._heartbeats.of_partition(partitions):
            if heard.open.token is not None:
                work.handed.append(msgspec.structs.replace(heard.open, token=None, beat_at=now))
        if self._local is not None and work.handed:
            self._local.divert({row.run_id.encode() for row in work.handed})
        return work


def _is_closed(run: Cached, fence: Fence) -> bool:
    """Whether the attempt is known to be over. Of a run that this release cannot read nothing is known."""
    return not run.problem and _open_node(run.state, fence) is None


def _open_node(state: RunState | None, fence: Fence) -> Node | None:
    if state is None or state.closed or state.header.execution != fence.execution:
        return None
    node = state.nodes.get(fence.node_id)
    return node if node is not None and node.generation == fence.generation and node.status == "dispatched" else None
