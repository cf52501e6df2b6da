"""Locks on folders, held by a process and gone with it, however it ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ductor_stream.errors import DevStackError

_log = logging.getLogger("ductor_stream.dev")


class FolderInUse(DevStackError):
    """Another process runs on the folder; the message has its pid."""


class FolderLock:
    """One process at a time may use a folder; a second one is refused with the first one's pid.

    An ``flock`` and not a pid file: the kernel lets go of it at the holder's death, also by
    ``kill -9``, so nothing is ever stale. The pid inside the file is only for the message.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; the folder is created if it does not exist. Does nothing if this object holds it.

        Raises:
            DevStackError: another holder has it, or the folder cannot be written.
        """
        if self._descriptor is not None:
            return
        if sys.platform == "win32":
            raise DevStackError("the embedded servers need Linux or macOS: on Windows, use WSL2")
        import fcntl  # not at the top: Windows has none, and must still be able to import the package

        descriptor = _open(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise FolderInUse(
                f"{self._path.parent} is in use by process {pid}: end that one, or use another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go. Does nothing if the lock is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def holder_pid(path: Path) -> int | None:
    """The pid of the process that holds the lock file ``path``, or None if nobody does."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_pid(descriptor)
    finally:
        os.close(descriptor)
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for whoever has it (for what two processes may fetch at once)."""
    import fcntl

    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _log.info("waiting for another process that prepares the same in %s", path.parent)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DevStackError(f"{path.parent} cannot be written ({error.strerror}): use another folder") from error


def _read_pid(descriptor: int) -> int:
    """The pid in a lock file; 0 in the instant between another's lock and its writing."""
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else 0
