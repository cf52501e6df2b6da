"""Postgres as it runs in production: a primary, a standby that confirms each commit, and a promotion that loses nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from chaos.disk import Disk
from chaos.network import Network
from ductor_stream.dev.binaries import find_binaries
from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.postgres import EmbeddedPostgres

NAMES = ("postgres-a", "postgres-b")
DATABASE = "chaos"
IN_STEP_WITHIN_S = 90.0
_SETTINGS = {
    "max_connections": "60",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "max_wal_senders": "5",
    "hot_standby": "on",
    "wal_keep_size": "64MB",
    "max_wal_size": "128MB",
    "fsync": "on",
    # When each commit landed, by the server's own clock: what the figures are read from.
    "track_commit_timestamp": "on",
    "wal_receiver_timeout": "5s",
    "wal_sender_timeout": "5s",
}


class Node:
    """One server, with a disk of its own, behind a gate for the members and one for its standby."""

    def __init__(self, name: str, folder: Path, network: Network, disk_mb: int) -> None:
        self.name = name
        self.port = pick_port()
        self.disk = Disk(folder / name, disk_mb)
        self.folder = folder / name
        self.members_port = network.gate(name, self.port)
        other = NAMES[1 - NAMES.index(name)]
        self.standby_port = network.gate(name, self.port, caller=other)
        self.server = EmbeddedPostgres(self.folder, port=self.port, settings=_SETTINGS)

    @property
    def data(self) -> Path:
        """Postgres's own folder."""
        return self.folder / "data"

    @property
    def password(self) -> str:
        """The superuser's."""
        return (self.folder / "password").read_text(encoding="ascii").strip()

    def url(self, database: str = DATABASE) -> str:
        """Past the gates, for observers."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"


class Pair:
    """Both servers. ``url`` is the members': whichever of the two can be written to."""

    def __init__(self, folder: Path, network: Network, disk_mb: int) -> None:
        self.nodes = [Node(name, folder, network, disk_mb) for name in NAMES]
        self.primary, self.standby = self.nodes

    @property
    def url(self) -> str:
        """Of the members, through the gates."""
        hosts = ",".join(f"127.0.0.1:{node.members_port}" for node in self.nodes)
        return f"postgresql://postgres:{self.nodes[0].password}@{hosts}/{DATABASE}"

    def start(self) -> None:
        """Start the primary, make the database, and attach the standby."""
        self.primary.server.start()
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        self.attach()

    def connect(self) -> psycopg.Connection[Any]:
        """An observer's connection to the primary."""
        return psycopg.connect(self.primary.url(), autocommit=True, connect_timeout=5)

    def attach(self) -> None:
        """Make the standby anew out of the primary, and wait until commits are confirmed by both."""
        node = self.standby
        node.server.stop()
        shutil.rmtree(node.data, ignore_errors=True)
        self._copy(node)
        (node.folder / "password").write_text(self.primary.password, encoding="ascii")
        conninfo = f"host=127.0.0.1 port={self.primary.standby_port} user=postgres password={self.primary.password}"
        own = f"primary_conninfo = '{conninfo} application_name={node.name} connect_timeout=5'\n"
        (node.data / "postgresql.auto.conf").write_text(own, encoding="ascii")
        node.server.start()
        self._until(lambda: "streaming" in self.replication(), "a standby that streams")
        self.require("*")
        self._until(self.in_step, "a standby that confirms")

    def _copy(self, node: Node) -> None:
        binaries = find_binaries(None, self.primary.data)
        connection = ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", "postgres"]
        command = [str(binaries.folder / "pg_basebackup"), *connection, "-D", str(node.data), "-R", "-c", "fast"]
        environment = {**os.environ, "PGPASSWORD": self.primary.password}
        subprocess.run(command, check=True, env=environment, capture_output=True, timeout=IN_STEP_WITHIN_S)
        if binaries.user is not None:
            for path in [node.data, *node.data.rglob("*")]:
                os.chown(path, *binaries.user)

    def require(self, names: str) -> None:
        """Which standbys must confirm a commit (``*`` or none)."""
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as connection:
            statement = sql.SQL("alter system set synchronous_standby_names = {}").format(sql.Literal(names))
            connection.execute(statement)
            connection.execute("select pg_reload_conf()")

    def replication(self) -> str:
        """State of the standby as the primary sees it (``streaming sync``), empty without one."""
        url = self.primary.url("postgres")
        with suppress(psycopg.Error), psycopg.connect(url, autocommit=True, connect_timeout=2) as connection:
            row = connection.execute("select state, sync_state from pg_stat_replication").fetchone()
            return " ".join(row) if row else ""
        return ""

    def in_step(self) -> bool:
        """Whether a promotion would lose nothing."""
        return self.replication() == "streaming sync"

    def promote(self) -> None:
        """Make the standby the primary. Its commits wait for nobody until there is another standby."""
        with psycopg.connect(self.standby.url("postgres"), autocommit=True) as connection:
            connection.execute("select pg_promote(true, 30)")
        self.primary, self.standby = self.standby, self.primary

    def revive(self) -> None:
        """Start the primary again where it has ended, and have a standby that confirms."""
        if self.primary.server.pid is None:
            self.primary.server.restart()
        if self.standby.server.pid is None or not self._caught_up():
            self.require("")
            self.attach()

    def _caught_up(self) -> bool:
        with suppress(TimeoutError):
            self._until(self.in_step, "a standby that confirms", within_s=15.0)
            return True
        return False

    def _until(self, condition: Callable[[], bool], what: str, within_s: float = IN_STEP_WITHIN_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Postgres: no {what} within {within_s:.0f} s")
            time.sleep(0.1)

    def stop(self) -> None:
        """End both, and unmount their disks."""
        for node in self.nodes:
            node.disk.free()
            node.server.kill()
            node.server.stop()
            node.disk.close()
