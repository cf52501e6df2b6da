"""Step 4 of the loop, the pure part: from ticked runs to the one batch that is committed, and what goes out after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ductor_stream.coordinator.attempt_rows import dispatched, error_json, finished, late
from ductor_stream.coordinator.cache import Cached, just_begun
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.heartbeats import Heard, Heartbeats
from ductor_stream.coordinator.kinship import row_for
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.coordinator.undelivered import Undelivered, refused
from ductor_stream.coordinator.work import Ticked, Work
from ductor_stream.engine.actions import (
    CloseAttempt,
    CommandChild,
    DispatchAttempt,
    EmitLifecycle,
    RecordLate,
    StartChild,
    StopAttempt,
    TellParent,
)
from ductor_stream.engine.ids import Fence
from ductor_stream.engine.state import Node, RunState, encode_header, encode_records, goes_on
from ductor_stream.engine.tick import wake_at
from ductor_stream.errors import PoisonedRun, TransientError
from ductor_stream.ports import (
    InboxRow,
    LocalWorkers,
    OpenAttempt,
    PartitionAdvance,
    RunWrite,
)
from ductor_stream.protocol.failures import clean
from ductor_stream.protocol.inbox import encode_event
from ductor_stream.protocol.limits import MAX_RECORD_BYTES
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

_EXACT_NODES = 32
"""Up to so many open nodes the next due time is computed exactly; beyond, a lower bound costs less and is mended when it comes."""

_REASON_CHARS = 2_000


class Committer:
    """Builds batches. Nothing here has an effect but the reservation of local slots."""

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        encoder: Encoder,
        local: LocalWorkers | None,
        memory: tuple[Dispatcher, Heartbeats, Undelivered],
        metrics: Metrics,
        partitions: int,
    ) -> None:
        self._partitions = partitions
        self._config, self._topics, self._encoder, self._local = config, topics, encoder, local
        self._dispatcher, self._heartbeats, self._undelivered = memory
        self._metrics = metrics
        self._hands_over = local is not None

    def stop_sync(self) -> None:
        """Hand nothing more to local workers: the process is about to end."""
        self._hands_over = False

    def cancel(self, prepared: Prepared) -> None:
        """The batch will not land: give the local slots back that were reserved for it."""
        for queue in prepared.reserved:
            if self._local is not None:
                self._local.cancel_reservation(queue)
        prepared.reserved.clear()

    def prepare(
        self, work: Work, ticked: Sequence[Ticked], owned: Mapping[int, Owned], counts: Mapping[str, int], now: int
    ) -> Prepared:
        """All that this turn writes and sends. ``counts`` are the partition counts of the namespace's topics.

        Raises PoisonedRun for a run whose outcome cannot be written down, TransientError.
        """
        prepared = Prepared(events=len(work.entries))
        try:
            self._prepare(prepared, work, ticked, owned, counts, now)
        except BaseException:
            self.cancel(prepared)
            raise
        return prepared

    def _prepare(
        self,
        prepared: Prepared,
        work: Work,
        ticked: Sequence[Ticked],
        owned: Mapping[int, Owned],
        counts: Mapping[str, int],
        now: int,
    ) -> None:
        batch = prepared.batch
        waiting = {row[:2] for row in work.deferred}
        batch.inbox, batch.deferred = list(work.inbox), work.deferred
        batch.consumed = [row for row in work.consumed if row not in waiting]
        batch.payloads, batch.released = work.payloads, list(work.released)
        batch.closed_attempts.extend(work.ended)
        for row in work.handed:
            self._open(prepared, row, None)
        for partition, records in work.outgoing.items():
            prepared.records.setdefault(partition, []).extend(records)
        for partition, run_id, told in work.orphaned:
            self._send(prepared, partition, run_id, told, {})
        for one in ticked:
            try:
                self._run(prepared, one, owned[one.partition], counts, now)
            except (PoisonedRun, TransientError):
                raise
            except Exception as error:
                # Whatever cannot be encoded is this run's own affair (R11).
                raise PoisonedRun(one.run_id, f"{type(error).__name__}: {error}") from error
        concerned = work.partitions() | prepared.records.keys()
        self._slow_sync(prepared, owned, concerned, now)
        discharged = frozenset(prepared.discharged)
        for partition in sorted(concerned):
            self._hold(prepared, owned[partition], counts)
            positions = work.positions.get(partition)
            batch.partitions.append(self._advance(prepared, owned[partition], positions, discharged))

    # -- runs -------------------------------------------------------------------------------

    def _run(self, prepared: Prepared, one: Ticked, owned: Owned, counts: Mapping[str, int], now: int) -> None:
        prepared.batch.messages.extend(one.messages)
        prepared.batch.released.extend(one.released)
        tick = one.tick
        state = tick.state if tick is not None else one.before.state
        if tick is not None and state is not None:
            if tick.records:
                self._write(prepared, one, state, owned, now)
            for action in (*one.contended(now), *tick.actions):
                self._act(prepared, one, state, action, counts, now)
        for beat, here in one.beats:
            node = state.nodes.get(beat.node_id) if state is not None else None
            if state is None or not _current(state, node, beat.execution, beat.generation):
                continue
            key = (one.run_id, beat.execution, beat.node_id)
            known = self._heartbeats.find(key)
            started = known.open.heard_at if known and known.open.generation == beat.generation else now
            details = beat.details if beat.details is not None or known is None else known.open.details
            row = OpenAttempt(
                one.partition,
                one.run_id,
                beat.execution,
                beat.node_id,
                beat.generation,
                owned.token if here else None,
                started,
                now,
                beat.worker,
                details,
            )
            self._open(prepared, row, node)

    def _open(self, prepared: Prepared, row: OpenAttempt, node: Node | None) -> None:
        prepared.batch.open_attempts.append(row)
        prepared.heard.append(Heard(row, node.options if node is not None else None))
        prepared.discharged.append(Fence(row.run_id, row.execution, row.node_id, row.generation))

    def _write(self, prepared: Prepared, one: Ticked, state: RunState, owned: Owned, now: int) -> None:
        tick, header, before = one.tick, state.header, one.before
        assert tick is not None
        version = before.record_version + 1
        same_execution = before.state is not None and before.state.header.execution == header.execution
        # A retry or reset keeps the records of the execution that it comes from; so do signals that stay in place.
        journal_from = before.journal_from if same_execution or header.origin or state.span else version
        entry = encode_records(tick.records)
        if len(entry) > self._config.history_bytes:
            # Else the statement would be one that Postgres does not read, and nothing would ever land.
            limit = f"{self._config.history_bytes:,} are the limit"
            raise PoisonedRun(one.run_id, f"{len(entry):,} bytes of history in one step forward, {limit}")
        size = len(entry) + (before.size if journal_from != version else 0)
        same = goes_on(before.state, state)
        wake = self._wake(one, state, tick.soonest, same)
        if wake is not None and state.held:
            wake = min(wake, now)  # at once: the run's own time is ahead where a clock was put right since
        reason = ""
        if header.parked is not None:
            reason = f"{header.parked.code}: {header.parked.message}"
        prepared.batch.runs.append(
            RunWrite(
                run_id=one.run_id,
                partition=one.partition,
                expected=before.record_version,
                workflow=header.workflow,
                version=header.version,
                execution=header.execution,
                status=header.status,
                header=None if same else encode_header(header),
                entry=entry,
                epoch=owned.epoch,
                journal_from=journal_from,
                wake_at=wake,
                reason=clean(reason, _REASON_CHARS),
                result=header.result,
                error=error_json(header.failure),
                started_at=header.started_at,
                closed_at=header.now if state.closed else None,
                now=header.now,
            )
        )
        self._count(prepared, one, before.state, state)
        if tick.lines:
            prepared.lines[one.run_id] = tick.lines
        live = None if state.closed else tick.live
        history = just_begun(tick.records, state) if live is None else ()
        prepared.kept[one.run_id] = Cached(version, state, live, one.partition, history, journal_from, wake, size)

    def _wake(self, one: Ticked, state: RunState, soonest: int | None, same: bool) -> int | None:
        before = one.before.wake_at
        if same and soonest is None and self._never_due(one.before) and not state.held:
            return None
        if len(state.nodes) <= _EXACT_NODES or before is None or one.before.state is None:
            return wake_at(state)
        return min(before, soonest) if soonest is not None else before

    def _never_due(self, before: Cached) -> bool:
        """Whether nothing of the run was due at any time; of one that was just loaded that is not known."""
        return before.live is not None and before.wake_at is None

    def _count(self, prepared: Prepared, one: Ticked, before: RunState | None, after: RunState) -> None:
        counters = prepared.batch.counters
        old = (before.header.workflow, before.header.status) if before is not None else None
        new = (after.header.workflow, after.header.status)
        if old == new:
            return
        for change, pair in ((-1, old), (1, new)):
            if pair is not None:
                key = (one.partition, *pair)
                counters[key] = counters.get(key, 0) + change

    # -- actions ----------------------------------------------------------------------------

    def _act(
        self, prepared: Prepared, one: Ticked, state: RunState, action: object, counts: Mapping[str, int], now: int
    ) -> None:
        match action:
            case DispatchAttempt(execution, node):
                self._dispatch(prepared, one, state, action, counts, now)
            case CloseAttempt(execution, node, report):
                self._end(prepared, one, execution, node)
                prepared.batch.attempts.append(finished(one.run_id, node, report, now))
            case StopAttempt(execution, node):
                self._end(prepared, one, execution, node)
                prepared.records.setdefault(one.partition, []).append(self._encoder.stop(one.run_id, action))
            case StartChild() | CommandChild() | TellParent():
                self._send(prepared, one.partition, one.run_id, action, state.header.context)
            case EmitLifecycle():
                header = state.header
                assert one.tick is not None
                version = one.before.record_version + bool(one.tick.records)
                record = self._encoder.lifecycle(one.run_id, header.workflow, header.version, action, version)
                prepared.records.setdefault(one.partition, []).append(record)
                prepared.lifecycles.append((one.run_id, header.workflow, action))
            case RecordLate(report):
                self._metrics.late_results.inc()
                if one.before.record_version:
                    prepared.batch.attempts.append(late(one.run_id, report, now))

    def _send(
        self,
        prepared: Prepared,
        partition: int,
        run_id: str,
        action: StartChild | CommandChild | TellParent,
        context: Mapping[str, str],
    ) -> None:
        """What one run has for another: a row in its home, and a hint (protocol 8)."""
        other, row = row_for(run_id, action, self._partitions, context)
        prepared.batch.inbox.append(row)
        hint = msgspec.structs.replace(self._encoder.wakeup(other), partition=row.partition)
        prepared.records.setdefault(partition, []).append(hint)

    def _dispatch(
        self,
        prepared: Prepared,
        one: Ticked,
        state: RunState,
        action: DispatchAttempt,
        counts: Mapping[str, int],
        now: int,
    ) -> None:
        node = action.node
        assert node.options is not None
        queue = node.options.queue
        here = self._reserve(prepared, queue, node.name)
        # What runs here has no partition; if it has to be redriven, its key is as good as any.
        count = None if here else counts.get(self._topics.tasks(queue))
        record = self._encoder.task(one.run_id, state.header.context, action, now, count)
        if not action.again:
            prepared.batch.attempts.append(dispatched(one.run_id, action, now))
        fence = Fence(one.run_id, action.execution, node.node_id, node.generation)
        if len(record.value) > MAX_RECORD_BYTES:
            # No worker would take it: the attempt has failed, as the run hears in the next turn (protocol 12).
            event = refused(fence, f"it has {len(record.value):,} bytes, {MAX_RECORD_BYTES:,} are the limit")
            about = f"refused/{one.run_id}/{fence.execution}/{fence.node_id}/{fence.generation}"
            prepared.batch.inbox.append(InboxRow(one.partition, about, "engine", encode_event(one.run_id, event)))
            if here and self._local is not None:
                self._local.cancel_reservation(prepared.reserved.pop())
            return
        if here:
            prepared.sync.setdefault(one.partition, {})[fence] = record
            prepared.records.setdefault(one.partition, [])
        else:
            prepared.records.setdefault(one.partition, []).append(record)

    def _reserve(self, prepared: Prepared, queue: str, step: str) -> bool:
        """Whether the attempt runs in this process: then a slot is kept for it."""
        if not self._hands_over or self._local is None or not self._local.reserve(queue, step):
            return False
        prepared.reserved.append(queue)
        return True

    def _end(self, prepared: Prepared, one: Ticked, execution: int, node: Node) -> None:
        key = (one.run_id, execution, node.node_id)
        prepared.ended.append(key)
        prepared.discharged.append(Fence(one.run_id, execution, node.node_id, node.generation))
        if self._heartbeats.find(key) is not None:
            prepared.batch.closed_attempts.append((one.partition, *key))

    # -- partitions -------------------------------------------------------------------------

    def _slow_sync(self, prepared: Prepared, owned: Mapping[int, Owned], concerned: set[int], now: int) -> None:
        """A SyncMatch attempt that takes long gets a row of its own, so that its outbox row can go (protocol 13)."""
        ending = set(prepared.ended)
        # Those that were heard of, or go on here for another owner, have their rows in this very batch.
        told = set(prepared.discharged)
        # Many rows behind a slow attempt would make intake rest: then its batch is let go at once.
        crowded = self._dispatcher.crowding() >= 1 / 2
        for fence, partition in self._dispatcher.slow_sync(0.0 if crowded else self._config.sync_row_s):
            if fence in told or partition not in concerned:
                continue
            if (fence.run_id, fence.execution, fence.node_id) not in ending:
                row = OpenAttempt(
                    partition,
                    fence.run_id,
                    fence.execution,
                    fence.node_id,
                    fence.generation,
                    owned[partition].token,
                    now,
                    now,
                )
                self._open(prepared, row, None)

    def _hold(self, prepared: Prepared, owned: Owned, counts: Mapping[str, int]) -> None:
        records = prepared.records.get(owned.partition, [])
        if records and counts:
            prepared.records[owned.partition], rows = self._undelivered.hold(owned, records, counts)
            prepared.batch.inbox.extend(rows)

    def _advance(
        self, prepared: Prepared, owned: Owned, positions: Sequence[int] | None, discharged: frozenset[Fence]
    ) -> PartitionAdvance:
        records = prepared.records.get(owned.partition, [])
        sync = prepared.sync.get(owned.partition, {})
        outbox = msgspec.msgpack.encode([*records, *sync.values()]) if records or sync else None
        return PartitionAdvance(
            partition=owned.partition,
            token=owned.token,
            epoch=owned.epoch,
            previous=owned.committed,
            next=tuple(positions if positions is not None else owned.offsets),
            # With what this commit discharges: else a partition that goes would be redriven for what runs on here.
            confirmed=self._dispatcher.confirmed(owned.partition, discharged),
            outbox_seq=owned.outbox_seq + (1 if outbox is not None else 0),
            outbox=outbox,
            topic_ids=owned.topic_ids if owned.ids_changed else None,
        )


def _current(state: RunState, node: Node | None, execution: int, generation: int) -> bool:
    return (
        node is not None
        and node.status == "dispatched"
        and execution == state.header.execution
        and generation == node.generation
    )
