"""A small disk of its own for a server, to be filled: a tmpfs. It takes root on Linux."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_PIECE = 1 << 20
_BALLAST = "ballast"


class Disk:
    """The file system of ``folder``: with ``size_mb`` one of its own, which can be filled. Raises OSError."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if size_mb and not _mounted(folder, size_mb):
            raise OSError(f"no tmpfs can be mounted on {folder}")
        self.small = size_mb > 0

    def fill(self) -> None:
        """Leave no byte."""
        assert self.small, "this file system is everybody's"
        with suppress(OSError), (self.folder / _BALLAST).open("wb", buffering=0) as file:
            size = 0
            step = _PIECE
            while step:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2  # down to the last byte

    def free(self) -> None:
        """Give the room back."""
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, with all that is in it."""
        if self.small:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
            self.small = False


def mountable() -> bool:
    """Whether this process may have one."""
    with tempfile.TemporaryDirectory() as folder, suppress(OSError):
        Disk(Path(folder), 1).close()
        return True
    return False


def _mounted(folder: Path, size_mb: int) -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
