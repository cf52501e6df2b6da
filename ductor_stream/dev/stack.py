"""Kafka and Postgres together, for one project's data directory."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.lock import FolderInUse, FolderLock, holder_pid
from ductor_stream.dev.postgres import EmbeddedPostgres
from ductor_stream.errors import DevStackError

_LOCK = "lock"
_SAY_FULL = ("No space left on device", "Check free disk space")
"""What servers write where no byte is left: the C library's words, and Postgres's where a write was cut short."""


class DevStack:
    """The embedded servers of one project, with their data in ``data_dir`` (a project's ``.ductor/``).

    Args:
        data_dir: made if it does not exist; ports and data are found again at the next start.
        kafka: False leaves Kafka out, where an existing one is used.
        postgres: False leaves Postgres out, where an existing one is used.
        fast_start: see ``EmbeddedKafka``.

    The servers end with the process that started them (on Linux even by ``kill -9``), and whatever
    state that leaves is recovered from at the next start.
    """

    def __init__(self, data_dir: Path, *, kafka: bool = True, postgres: bool = True, fast_start: bool = True) -> None:
        self.data_dir = data_dir.absolute()
        self.kafka = EmbeddedKafka(self.data_dir / "kafka", fast_start=fast_start) if kafka else None
        self.postgres = EmbeddedPostgres(self.data_dir / "postgres") if postgres else None
        self._lock = FolderLock(self.data_dir / _LOCK)

    def start(self) -> None:
        """Start both at once and return when both are ready; about 1 s after the first time.

        Raises:
            DevStackError: another process runs on ``data_dir`` (the message has its pid), or a server did not
                start; the other one is stopped again. A disk that is full is named.
        """
        try:
            self._start()
        except FolderInUse:
            raise
        except (DevStackError, OSError) as error:
            if _is_of_a_full_disk(error):
                there = next(each for each in (self.data_dir, *self.data_dir.parents) if each.exists())
                free = shutil.disk_usage(there).free >> 20
                told = f"the disk of {self.data_dir} is full ({free} MB are free, a first start takes some 60)"
                raise DevStackError(f"{told}: make room, or name a folder on another disk by --data-dir") from error
            raise

    def _start(self) -> None:
        self._lock.acquire()
        try:
            self._ignore_in_git()
            _at_once([server.start for server in (self.kafka, self.postgres) if server is not None])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both in order and let go of ``data_dir``. Does nothing if they do not run."""
        try:
            _at_once([server.stop for server in (self.kafka, self.postgres) if server is not None])
        finally:
            self._lock.release()

    def ended(self) -> list[tuple[str, str]]:
        """The servers that have ended by themselves, each with how: ``("Kafka", "killed by signal 9")``."""
        named = (("Kafka", self.kafka), ("Postgres", self.postgres))
        return [(name, server.ended) for name, server in named if server is not None and server.ended]

    def revive(self) -> None:
        """Start those that have ended again, on the same data and ports.

        Raises:
            DevStackError: one of them cannot be started.
        """
        _at_once([server.restart for server in (self.kafka, self.postgres) if server is not None and server.ended])

    def _ignore_in_git(self) -> None:
        """Nobody wants the servers' data in a commit, whatever the project's own ignore file says."""
        ignore = self.data_dir / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")


def running_pid(data_dir: Path) -> int | None:
    """The pid of the process whose ``DevStack`` runs on ``data_dir``, or None if there is none."""
    return holder_pid(data_dir.absolute() / _LOCK)


def _is_of_a_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        if any(words in str(error) for words in _SAY_FULL):
            return True
        error = error.__cause__
    return False


def _at_once(works: list[Callable[[], None]]) -> None:
    """Do all of them in parallel; when all have ended, the first failure (in the order given) is raised."""
    if not works:
        return
    with ThreadPoolExecutor(len(works)) as threads:
        outcomes = [threads.submit(work) for work in works]
    for outcome in outcomes:
        outcome.result()
