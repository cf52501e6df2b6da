"""Floors: what this disk, this Postgres and this Kafka give at best, measured in the same run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import psycopg

from bench.plan import Bench
from bench.servers import PingPong, Servers
from ductor_stream.dev.binaries import find_binaries

_ROW = "x" * 100
_STATE_BYTES = 1_024
_RUNS = 5_000
_BATCH = 500
"""As many as the coordinator commits at once."""
_CLIENTS = 32
_RECORDS = 2_000
_BLOCK = 4_096
_FILE_BYTES = 16 << 20


def floors(bench: Bench) -> None:
    """Rates per second, without anything of the product."""
    measured: dict[str, Callable[[Servers, float], float | None]] = {
        "floor_fdatasyncs_per_s": fdatasyncs,
        "floor_commits_per_s": commits,
        f"floor_commits_of_{_CLIENTS}_clients_per_s": commits_of_many,
        "floor_batched_updates_per_s": batched_updates,
        "floor_kafka_records_per_s": kafka_records,
    }
    for _ in range(bench.repeats):
        for key, measure in measured.items():
            rate = measure(bench.servers, bench.sizes.floor_s)
            if rate is not None:
                bench.results.add(key, rate)
                bench.say(f"{key}: {rate:,.0f}")


def _rate(seconds: float, once: Callable[[], int]) -> float:
    """What ``once`` says it did, per second, over and over for so long."""
    done, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        done += once()
    return done / (now - began)


def fdatasyncs(servers: Servers, seconds: float) -> float:
    """4 KB written into a file that has its size already, each made durable before the next."""
    path = servers.folder / "fdatasync"
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.pwrite(file, b"\0" * _FILE_BYTES, 0)
        os.fsync(file)
        at = 0

        def once() -> int:
            nonlocal at
            os.pwrite(file, b"x" * _BLOCK, at)
            os.fdatasync(file)
            at = (at + _BLOCK) % _FILE_BYTES
            return 1

        return _rate(seconds, once)
    finally:
        os.close(file)
        path.unlink()


def commits(servers: Servers, seconds: float) -> float:
    """Inserts of one row of 100 bytes, each its own transaction, one after the other from this process."""
    with servers.database() as url, psycopg.connect(url, autocommit=True) as connection:
        _make_lines(connection)

        def once() -> int:
            connection.execute("insert into line (body) values (%b)", (_ROW,), prepare=True)
            return 1

        return _rate(seconds, once)


def commits_of_many(servers: Servers, seconds: float) -> float | None:
    """The same by Postgres's own load program from many connections; None where it is not installed."""
    program = find_binaries(None, servers.folder / "postgres").folder / "pgbench"
    if not program.is_file():
        return None
    script = servers.folder / "insert.sql"
    script.write_text(f"insert into line (body) values ('{_ROW}');\n")
    with servers.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            _make_lines(connection)
        many = ["-c", str(_CLIENTS), "-j", "2", "-T", str(max(1, round(seconds)))]
        command = [str(program), "-n", "-M", "prepared", "-f", str(script), *many, url]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return next(float(line.split()[2]) for line in told.splitlines() if line.startswith("tps"))


def batched_updates(servers: Servers, seconds: float) -> float:
    """Version-checked updates of 1 KB, 500 to a transaction, from this one process (parameters in binary)."""
    query = """
        update run set version = run.version + 1, state = d.state
          from unnest(%b::text[], %b::bigint[], %b::bytea[]) as d (id, version, state)
         where run.id = d.id and run.version = d.version
    """
    with servers.database() as url, psycopg.connect(url, autocommit=True) as connection:
        _make_runs(connection)
        batches = [[f"run-{n:06}" for n in range(at, at + _BATCH)] for at in range(0, _RUNS, _BATCH)]
        state, turn = os.urandom(_STATE_BYTES), 0

        def once() -> int:
            nonlocal turn
            ids, version = batches[turn % len(batches)], turn // len(batches) + 1
            turn += 1
            changed = connection.execute(query, (ids, [version] * _BATCH, [state] * _BATCH), prepare=True).rowcount
            assert changed == _BATCH, f"{changed} of {_BATCH} rows were updated"
            return changed

        return _rate(seconds, once)


def kafka_records(servers: Servers, seconds: float) -> float:
    """Records of 150 bytes produced (acks=all, idempotent) and consumed again, by this process."""
    with servers.topic("floor", 4) as name, PingPong(servers.kafka.bootstrap, name) as game:
        game.play(_RECORDS)

        def once() -> int:
            game.play(_RECORDS)
            return _RECORDS

        return _rate(seconds, once)


def _make_lines(connection: psycopg.Connection) -> None:
    connection.execute("create table line (id bigint generated always as identity primary key, body text)")


def _make_runs(connection: psycopg.Connection) -> None:
    connection.execute("create table run (id text primary key, version bigint, state bytea) with (fillfactor = 40)")
    rows = "select 'run-' || lpad(n::text, 6, '0'), 1, ''::bytea from generate_series(0, %s) n"
    connection.execute(f"insert into run {rows}", (_RUNS - 1,))
