"""Steps 2 and 3 of the loop: the runs concerned, and one pure tick for each. A failure stays with its run (R11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ductor_stream.coordinator.backlog import Backlog
from ductor_stream.coordinator.cache import Cached, RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.suspects import Suspects
from ductor_stream.coordinator.work import Entry, Ticked, Work
from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    AttemptTimedOut,
    CommandReceived,
    Condemned,
    RunStarted,
    SignalReceived,
    StartRepeated,
)
from ductor_stream.engine.tick import Stamped, tick
from ductor_stream.errors import DataError, InvariantViolation, TransientError
from ductor_stream.ports import Clock, MessageRow, RunStore
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder
from ductor_stream.protocol.inbox import decode_received, encode_received
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_TRY_LATER_MS = 5_000
"""A run that only a newer release can read is looked at again after this time, by then perhaps there."""


class Ticker:
    """Turns the entries of a turn into ticked runs."""

    def __init__(
        self,
        config: CoordinatorConfig,
        definitions: Definitions,
        ports: tuple[RunStore, Clock],
        memory: tuple[RunCache, Heartbeats],
        codec: tuple[InboundDecoder, DeadLetters],
        metrics: Metrics,
        suspects: Suspects,
    ) -> None:
        self._suspects = suspects
        self._config, self._definitions = config, definitions
        self._store, self._clock = ports
        self._cache, self._heartbeats = memory
        self._metrics = metrics
        self._decoder, self._letters = codec
        self._rows = itertools.count()

    def known(self, entries: Sequence[Entry]) -> dict[tuple[str, str, str], str]:
        """Which inputs with an id were applied or buffered before (R6), and their names. Raises StoreUnavailable."""
        keys = {(e.run_id, *e.dedupe) for e in entries if e.dedupe is not None}
        return self._store.known_messages(sorted(keys)) if keys else {}

    def tick_all(
        self, work: Work, entries: Sequence[Entry], portions: Iterable[Mapping[str, Cached]], ticked: list[Ticked]
    ) -> None:
        """Tick each run over its entries, in order, and add it to ``ticked``: those of one portion before the next is loaded.

        What belongs into the commit beside the runs is added to ``work``.
        """
        by_run = self._by_run(entries)
        for runs in portions:
            for run_id in [run_id for run_id in by_run if run_id in runs]:
                before = runs[run_id]
                ticked.append(self._tick_one(work, run_id, by_run.pop(run_id), before))
                if self._cache.peek(run_id) is not before:
                    before.history = ()  # it was read for this tick: the next portion needs the room

    def _by_run(self, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
        """The inputs of each run, in order; those that were applied before are left out (R6).

        But for a start: who sends it again may not have heard what became of it.
        """
        known = self.known(entries)
        fresh: set[tuple[str, str, str]] = set()
        found: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.dedupe is not None:
                key = (entry.run_id, *entry.dedupe)
                if key in known or key in fresh:
                    self._metrics.duplicate_inputs[entry.dedupe[0]].inc()
                    if key in fresh or not isinstance(entry.input, RunStarted):
                        continue
                    repeated = StartRepeated(entry.input.start_id, refused=not known[key])
                    entry = msgspec.structs.replace(entry, input=repeated, dedupe=None)
                fresh.add(key)
            found.setdefault(entry.run_id, []).append(entry)
        return found

    def _tick_one(self, work: Work, run_id: str, entries: list[Entry], before: Cached) -> Ticked:
        ticked = Ticked(run_id, entries[0].partition, entries, before, lost=work.lost.get(run_id, 0))
        if before.problem:
            self._postpone(work, ticked, before.problem)
            return ticked
        try:
            self._apply(work, ticked)
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the batch along (R11)
            _log.exception("run cannot be ticked", run_id=run_id)
            self._cache.drop([run_id])
            return self._set_aside(work, Ticked(run_id, ticked.partition, entries, before, lost=ticked.lost), error)
        return ticked

    def _set_aside(self, work: Work, ticked: Ticked, error: Exception) -> Ticked:
        problem = DataError("tick_failed", f"{type(error).__name__}: {error}")
        for entry in ticked.entries:
            if entry.received is not None:
                self._letters.add(work, ticked.partition, entry.received, problem)
            work.orphan(entry, problem)
        state = ticked.before.state
        if state is not None and not state.closed:
            # Its input is lost to it: an explained failure, not silence (R9).
            condemned = Condemned("tick_failed", f"{type(error).__name__}: {error}")
            ticked.tick = tick({}, ticked.run_id, state, [Stamped(self._clock.now(), condemned)])
        return ticked

    def _postpone(self, work: Work, ticked: Ticked, problem: str) -> None:
        """This release cannot read the run: its input waits in the inbox (protocol 19). Heartbeats come again by themselves."""
        _log.error("run cannot be read by this release", run_id=ticked.run_id, problem=problem)
        later = self._clock.now() + _TRY_LATER_MS
        for entry in ticked.entries:
            if entry.durable and not isinstance(entry.input, Beat):
                about = f"later/{later}/{ticked.run_id}/{next(self._rows)}"
                work.put_off(entry, about, later, entry.tries)

    def _apply(self, work: Work, ticked: Ticked) -> None:
        stamped: list[Stamped] = []
        before, now = ticked.before, self._clock.now()
        exists = before.state is not None
        backlog: Backlog | None = None
        for entry in ticked.entries:
            event = entry.input
            if isinstance(event, Beat):
                ticked.beats.append((event, entry.received is not None and entry.received.partition < 0))
                continue
            if not exists and not isinstance(event, RunStarted):
                self._before_start(work, ticked, entry, event, now)
                continue
            if isinstance(event, RunStarted):
                event = self._pinned(event)
            elif isinstance(event, AttemptFinished | AttemptTimedOut) and event.details is None:
                event = self._with_details(ticked.run_id, event)
            elif isinstance(event, SignalReceived) and entry.received is not None:
                backlog = backlog or Backlog(self._config, ticked.run_id, before.state)
                problem = backlog.refusal(event)
                if problem is not None:
                    self._letters.add(work, ticked.partition, entry.received, problem)
                    continue
            stamped.append(Stamped(now, event))
            self._remember(ticked, entry, event)
            if not exists:
                exists = True
                stamped.extend(self._buffered(ticked, now))
        if stamped:
            self._tick(ticked, [*self._bounded(before, now), *stamped])

    def _bounded(self, before: Cached, now: int) -> list[Stamped]:
        """A run whose history has no end fails visibly before it hurts anyone (R10)."""
        config, state = self._config, before.state
        if state is None or state.closed:
            return []
        if state.header.seq < config.history_limit and before.size < config.history_bytes:
            return []
        has = f"{state.header.seq:,} events and {before.size:,} bytes"
        message = f"its history has {has}: let it continue as new (run.should_continue)"
        return [Stamped(now, Condemned("history_limit", message))]

    def _tick(self, ticked: Ticked, stamped: list[Stamped]) -> None:
        before = ticked.before
        ticked.tick = tick(
            self._definitions.by_version,
            ticked.run_id,
            before.state,
            stamped,
            live=before.live,
            history=before.history,
            parked=self._suspects.parked(ticked.run_id, self._digest(before, stamped)),
        )
        if any(row.kind == "start" for row in ticked.messages):
            refused = {
                a.about for a in ticked.tick.actions if isinstance(a, EmitLifecycle) and a.reason == "run_exists"
            }
            ticked.messages = [_nameless(row) if row.id in refused else row for row in ticked.messages]

    def _digest(self, before: Cached, stamped: list[Stamped]) -> str:
        first = stamped[0].event
        about = before.state.header if before.state is not None else first if isinstance(first, RunStarted) else None
        definition = self._definitions.find(about.workflow, about.version) if about is not None else None
        return definition.digest if definition is not None else ""

    def _pinned(self, event: RunStarted) -> RunStarted:
        """A start without a version gets the last one declared here; the run keeps it, and the timeout declared with it."""
        version = event.version or self._definitions.version_of(event.workflow)
        definition = self._definitions.find(event.workflow, version)
        timeout = event.run_timeout_ms
        if timeout is None and definition is not None:
            timeout = definition.run_timeout_ms
        return msgspec.structs.replace(event, version=version, run_timeout_ms=timeout)

    def _with_details(self, run_id: str, event: AttemptFinished | AttemptTimedOut) -> AnyEvent:
        """What the attempt's last heartbeat said is for the next attempt."""
        heard = self._heartbeats.find((run_id, event.execution, event.node_id))
        if heard is None or heard.open.generation != event.generation or heard.open.details is None:
            return event
        return msgspec.structs.replace(event, details=heard.open.details)

    def _remember(self, ticked: Ticked, entry: Entry, event: AnyEvent) -> None:
        if entry.dedupe is not None:
            kind, id = entry.dedupe
            ticked.messages.append(MessageRow(ticked.run_id, ticked.partition, id, kind, _name(event)))

    # -- before the start -------------------------------------------------------------------

    def _before_start(self, work: Work, ticked: Ticked, entry: Entry, event: AnyEvent, now: int) -> None:
        """Signals and commands wait for their run (protocol 24); anything else for it is late."""
        if isinstance(event, AttemptFinished):
            self._metrics.late_results.inc()
        if not isinstance(event, SignalReceived | CommandReceived) or entry.dedupe is None or entry.received is None:
            return
        buffered = ticked.before.buffered
        count, size = ticked.early or (len(buffered), sum(len(message.body) for message in buffered))
        if count >= self._config.buffered_limit or size >= self._config.signals_bytes:
            error = DataError("buffer_full", f"{count:,} messages of {size:,} bytes wait for run {ticked.run_id}")
            self._letters.add(work, ticked.partition, entry.received, error)
            return
        kind, id = entry.dedupe
        body, expires_at = encode_received(entry.received), now + self._config.buffered_ttl_ms
        ticked.messages.append(MessageRow(ticked.run_id, ticked.partition, id, kind, _name(event), body, expires_at))
        ticked.early = count + 1, size + len(body)

    def _buffered(self, ticked: Ticked, now: int) -> list[Stamped]:
        """What came before the start, in order of arrival, also from earlier in this batch."""
        found: list[Stamped] = []
        for message in ticked.before.buffered:
            found.append(Stamped(now, self._decoded(message.body, message.id)))
            ticked.released.append((ticked.run_id, message.kind, message.id))
        for row in ticked.messages:
            if row.body is not None:
                found.append(Stamped(now, self._decoded(row.body, row.id)))
        ticked.messages = [msgspec.structs.replace(row, body=None, expires_at=None) for row in ticked.messages]
        return found

    def _decoded(self, body: bytes, id: str) -> AnyEvent:
        message = self._decoder.decode(decode_received(body), "")
        event = message.event if isinstance(message, ForRun) else None
        if isinstance(event, SignalReceived):
            return msgspec.structs.replace(event, signal_id=id)
        if isinstance(event, CommandReceived):
            return msgspec.structs.replace(event, command_id=id)
        raise InvariantViolation(f"a {type(event).__name__} was buffered")


def _nameless(row: MessageRow) -> MessageRow:
    """A start that was refused: if it comes again, its sender is told so again."""
    return msgspec.structs.replace(row, name="") if row.kind == "start" else row


def _name(event: AnyEvent) -> str:
    match event:
        case SignalReceived(_, name):
            return name
        case CommandReceived(kind):
            return kind
        case RunStarted(workflow):
            return workflow
        case _:
            return ""
