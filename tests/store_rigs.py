"""What tests of the store share: rigs that open stores over one fresh database, and an owner that commits by hand."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import psycopg
import pytest
from servers import PostgresServer, fresh_database
from support import fresh_name

from ductor_stream.dev.binaries import installations
from ductor_stream.dev.postgres import EmbeddedPostgres
from ductor_stream.ports import (
    AttemptRow,
    Batch,
    InboxRow,
    LoadedRun,
    MessageRow,
    OpenAttempt,
    PartitionAdvance,
    RunStore,
    RunWrite,
    Taken,
)
from ductor_stream.store.migrate import migrate
from ductor_stream.store.postgres import PostgresStore, StoreOptions
from ductor_stream.store.queries import all_queries
from ductor_stream.testing.simulation.memory_database import DatabaseServer
from ductor_stream.testing.simulation.memory_store import MemoryStore

_T = TypeVar("_T")

T0 = 1_795_000_000_000
"""The engine's time in these tests, ms."""

N = 4
CLUSTER = "cluster-1"

POSTGRES = [str(folder) for folder in installations()] or [""]
"""Each Postgres that can be had here, by the folder of its programs; the session's own where there is none."""


def postgres_label(folder: str) -> str:
    """How a test's id names it."""
    return (
        MEMORY
        if folder == MEMORY
        else "session"
        if not folder
        else "wheel"
        if "site-packages" in folder
        else folder.split(os.sep)[-2]
    )


@contextmanager
def migrated_database(folder: str, data: Path, session: Callable[[], PostgresServer]) -> Iterator[str]:
    """The URL of a database with the schema, on a server of its own where there are programs for one.

    Tests share it: each keeps to its own namespace.
    """
    if not folder:
        with fresh_database(session().url) as url:
            migrate(url)
            yield url
        return
    # What is tested here is no power failure, so nothing need reach the disk.
    settings = {"max_connections": "100", "fsync": "off"}
    server = EmbeddedPostgres(data, binaries=Path(folder), settings=settings)
    server.start()
    try:
        migrate(server.url)
        yield server.url
    finally:
        server.stop()


MEMORY = "memory"
"""Instead of a database's URL: the store of the simulation, to be held to the same contract."""


def database_fixture(*others: str) -> Any:
    """The fixture ``database`` of a module: a database with the schema on each Postgres there is.

    ``others`` may be ``MEMORY``.
    """

    @pytest.fixture(scope="module", params=[*POSTGRES, *others], ids=postgres_label)
    def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        if request.param == MEMORY:
            yield MEMORY
            return

        def session() -> PostgresServer:
            found: PostgresServer = request.getfixturevalue("postgres")
            return found

        with migrated_database(request.param, tmp_path_factory.mktemp("store"), session) as url:
            yield url

    return database


def rig_fixture() -> Any:
    """The fixture ``rig`` of a module: a fresh namespace in its ``database``."""

    @pytest.fixture
    def rig(database: str) -> Iterator[StoreRig]:
        if database == MEMORY:
            yield MemoryRig()
            return
        with postgres_rig(database) as made:
            yield made

    return rig


class StoreRig(Protocol):
    """A place in which stores of one namespace can be opened; closed by the fixture."""

    def open(self) -> RunStore:
        """A store in the namespace, another session each time."""


class MemoryRig:
    """Stores over a database in memory."""

    def __init__(self) -> None:
        self._server = DatabaseServer(lambda: time.time_ns() // 1_000_000)
        self._name = fresh_name("shop")

    def open(self) -> RunStore:
        store = MemoryStore(self._server)
        store.namespace(self._name, CLUSTER, N)
        return store


class PostgresRig:
    """Stores in one namespace of a database, and a superuser's look at it."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.name = name
        self._opened: list[PostgresStore] = []
        self._admin = psycopg.connect(dsn, autocommit=True, application_name="admin")

    def open(self, *, dsn: str | None = None, **options: int) -> PostgresStore:
        store = PostgresStore(dsn or self.dsn, options=StoreOptions(**options))
        self._opened.append(store)
        store.namespace(self.name, CLUSTER, N)
        return store

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        """What a superuser reads."""
        return self._admin.execute(query.encode(), params).fetchall()

    def run(self, query: str, *params: Any) -> None:
        """What a superuser does."""
        self._admin.execute(query.encode(), params)

    @contextmanager
    def session(self, name: str = "somebody") -> Iterator[psycopg.Connection[Any]]:
        """A session in a transaction, for holding locks; rolled back if it is still open at the end."""
        with psycopg.connect(self.dsn, application_name=name) as connection:
            yield connection
            if not connection.closed:
                connection.rollback()

    def everything(self) -> dict[str, list[str]]:
        """All rows of all tables, with their xmin: equal means that nothing was written, not even the same value."""
        tables = self.rows("select relname from pg_class where relname like 'eec_%%' and relkind = 'r' order by 1")
        return {
            name: [row for (row,) in self.rows(f"select t.xmin::text || t::text from {name} t order by 1")]
            for (name,) in tables
        }

    def blocked(self) -> list[int]:
        """Pids of sessions in this database that wait for a lock."""
        return [
            pid
            for (pid,) in self.rows(
                "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            )
        ]

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._admin.close()


@contextmanager
def postgres_rig(dsn: str) -> Iterator[PostgresRig]:
    """A rig in a fresh namespace of a database that has the schema."""
    rig = PostgresRig(dsn, fresh_name("shop"))
    try:
        yield rig
    finally:
        rig.close()


class Owner:
    """The owner of one partition: takes it, and commits batches under its fence."""

    def __init__(self, store: RunStore, partition: int = 1) -> None:
        self.store = store
        self.partition = partition
        self.token = str(uuid.uuid4())
        self.taken: Taken = store.take(partition, self.token)
        self.offsets = self.taken.offsets
        self.seq = self.taken.outbox_seq
        self.versions: dict[str, int] = {}

    @property
    def epoch(self) -> int:
        return self.taken.epoch

    def advance(self, **changes: Any) -> PartitionAdvance:
        """The next advance of this partition: one record of run-events further, one outbox row."""
        base = PartitionAdvance(
            partition=self.partition,
            token=self.token,
            epoch=self.epoch,
            previous=self.offsets,
            next=(self.offsets[0] + 1, *self.offsets[1:]),
            confirmed=0,
            outbox_seq=self.seq + 1,
            outbox=b"outbox %d" % (self.seq + 1),
        )
        return msgspec.structs.replace(base, **changes)

    def write(self, run_id: str, expected: int | None = None, **changes: Any) -> RunWrite:
        """The next state of a run of this partition."""
        version = self.versions.get(run_id, 0) if expected is None else expected
        base = RunWrite(
            run_id=run_id,
            partition=self.partition,
            expected=version,
            workflow="fulfil",
            version="1",
            execution=1,
            status="running",
            header=b"header %d" % (version + 1),
            entry=b"entry %d" % (version + 1),
            epoch=self.epoch,
            journal_from=1,
            wake_at=None,
            reason="",
            result=None,
            error=None,
            started_at=T0,
            closed_at=None,
            now=T0 + version,
        )
        return msgspec.structs.replace(base, **changes)

    def batch(self, *runs: RunWrite | str, **parts: Any) -> Batch:
        """A batch of this partition alone; a run is its write, or its id."""
        writes = [self.write(run) if isinstance(run, str) else run for run in runs]
        return Batch(partitions=[self.advance()], runs=writes, **parts)

    def commit(self, *runs: RunWrite | str, **parts: Any) -> int:
        """Commit a batch and remember what it moved."""
        return self.send(self.batch(*runs, **parts))

    def send(self, batch: Batch) -> int:
        """Commit a batch that ``batch`` made, and remember what it moved."""
        now = self.store.commit(batch)
        (advance,) = batch.partitions
        self.offsets = advance.next
        self.seq = advance.outbox_seq if advance.outbox is not None else self.seq
        self.versions.update((run.run_id, run.expected + 1) for run in batch.runs)
        return now

    def attempt(self, run_id: str, phase: str = "dispatched", **changes: Any) -> AttemptRow:
        """A line about an attempt."""
        base = AttemptRow(run_id, 1, "1", 1, phase, 1, "charge", "payments", "", None, "", T0)
        return msgspec.structs.replace(base, **changes)

    def message(self, run_id: str, message_id: str, **changes: Any) -> MessageRow:
        """An applied signal; with ``body`` a buffered one."""
        return msgspec.structs.replace(MessageRow(run_id, self.partition, message_id, "signal", "approved"), **changes)

    def open_attempt(self, run_id: str, **changes: Any) -> OpenAttempt:
        """An attempt that was heard of."""
        base = OpenAttempt(self.partition, run_id, 1, "1", 1, None, T0, T0, "host-1", b"{}")
        return msgspec.structs.replace(base, **changes)

    def mail(self, source: str, **changes: Any) -> InboxRow:
        """A message to a run of this partition."""
        return msgspec.structs.replace(InboxRow(self.partition, source, "child", b"body " + source.encode()), **changes)


def looked_at(rig: StoreRig, *run_ids: str) -> tuple[dict[str, LoadedRun], Taken]:
    """What another owner finds: these runs, and the partition, but for what each take changes."""
    store = rig.open()
    loaded = store.load(run_ids)
    taken = store.take(1, str(uuid.uuid4()))
    return loaded, msgspec.structs.replace(taken, token="", last_token="", epoch=0, now=0, clean=False)


class Background(Generic[_T]):
    """A call in a thread of its own; ``result`` waits for it and gives or raises what it did."""

    def __init__(self, call: Callable[[], _T]) -> None:
        self._outcome: list[tuple[_T | None, BaseException | None]] = []
        self._call = call
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            self._outcome.append((self._call(), None))
        except BaseException as error:  # noqa: BLE001 (whatever it raised, `result` raises it)
            self._outcome.append((None, error))

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return bool(self._outcome)

    def result(self, within_s: float = 30) -> _T:
        """What the call returned. Raises what it raised."""
        self._thread.join(within_s)
        assert self._outcome, f"the call did not end within {within_s} s"
        value, error = self._outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


def indexes_of(query: str) -> tuple[str, ...]:
    """The indexes that a query's header names."""
    return all_queries()[query].indexes
