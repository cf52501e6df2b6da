"""What rebuilding a run at the bounds of its history costs its owner (R10): ``python -m bench.rebuild [TIMES]``.

Loaded from Postgres, folded to its state, replayed to its coroutine, and ticked once: as when something happens to a run
that is not in memory. Seconds on the clock, and of them of this process's processor.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import psycopg

from bench.app import app
from ductor_stream.coordinator.cache import Cached, cached_from
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.dev import EmbeddedPostgres
from ductor_stream.engine.events import AttemptFinished, RunStarted
from ductor_stream.engine.state import RunState, encode_header, encode_records
from ductor_stream.engine.tick import Stamped, tick
from ductor_stream.store.migrate import migrate
from ductor_stream.store.postgres import PostgresStore
from ductor_stream.wiring.coordinators import definitions_of

_RUN = "long"
_LARGE_BYTES = 10_000
_TRANSITIONS = "copy eec_workflow_transition (ns, run_id, record_version, execution, epoch, at, records) from stdin"
_INSERT = """
    insert into eec_workflow_run (ns, run_id, partition, workflow, version, status, execution, record_version,
                                  journal_from, state, started_at, updated_at)
    values (%s, %s, 0, 'chain', '1', 'running', 1, %s, 1, %s, now(), now())"""
_definitions = definitions_of(app).by_version
_T = TypeVar("_T")


def _next_result(state: RunState, payload: int) -> AttemptFinished:
    (node,) = state.nodes.values()
    output = b'{"step":0,"status":"ok","payload":"%s"}' % (b"x" * payload)
    return AttemptFinished(1, node.node_id, node.generation, "completed", output)


def _history(events: int, payload: int) -> tuple[list[bytes], RunState]:
    """The records of a chain after so many events, commit by commit, and its state."""
    start = RunStarted("chain", "1", input=b"1000000", start_id="s")
    done = tick(_definitions, _RUN, None, [Stamped(1, start)])
    rows = [encode_records(done.records)]
    while len(rows) < events:
        assert done.state is not None
        event = Stamped(len(rows) + 1, _next_result(done.state, payload))
        done = tick(_definitions, _RUN, done.state, [event], live=done.live)
        rows.append(encode_records(done.records))
    assert done.state is not None
    assert done.live is not None
    done.live.abandon()
    return rows, done.state


def _stored(url: str, ns: int, rows: Sequence[bytes], state: RunState) -> None:
    with psycopg.connect(url) as connection:
        with connection.cursor().copy(_TRANSITIONS) as copy:
            for version, records in enumerate(rows, 1):
                copy.write_row((ns, _RUN, version, 1, 1, datetime.now(UTC), records))
        connection.execute(_INSERT, (ns, _RUN, len(rows), encode_header(state.header)))


def _ticked(cached: Cached, payload: int) -> None:
    state = cached.state
    assert state is not None, cached.problem
    event = Stamped(state.header.now + 1, _next_result(state, payload))
    done = tick(_definitions, _RUN, state, [event], history=cached.history)
    assert done.live is not None, "replayed"
    done.live.abandon()


def _timed(what: str, work: Callable[[], _T]) -> _T:
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    print(f"  {what} {time.perf_counter() - wall:.2f} s ({time.process_time() - cpu:.2f} s)", end="", flush=True)
    return found


def measure(url: str, events: int, payload: int, times: int) -> None:
    """Print what a chain of so many events costs, with so many bytes of payload in each result."""
    store = PostgresStore(url)
    ns = store.namespace(f"rebuild-{events}", "bench", 1).ns
    rows, state = _history(events, payload)
    _stored(url, ns, rows, state)
    print(f"{events:,} events, {sum(map(len, rows)):,} bytes")
    for _ in range(times):
        loaded = _timed("load", lambda: store.load([_RUN])[_RUN])
        cached = _timed("fold", lambda loaded=loaded: cached_from(loaded))  # type: ignore[misc]
        _timed("replay", lambda cached=cached: _ticked(cached, payload))  # type: ignore[misc]
        print()
    store.close()


def main(times: int = 3) -> None:
    """At the bound of events, and at that of bytes."""
    bounds = CoordinatorConfig()
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder) / "postgres")
        postgres.start()
        try:
            migrate(postgres.url)
            measure(postgres.url, bounds.history_limit, 2, times)
            measure(postgres.url, bounds.history_bytes // _LARGE_BYTES, _LARGE_BYTES - 150, times)
        finally:
            postgres.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
