"""A small disk of its own for a server, to be filled: a tmpfs. It takes root on Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PIECE = 1 << 20
_BALLAST = "ballast"


class Disk:
    """The file system of ``folder``. ``small`` says whether it is one of its own, so that it can be filled."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.small = _mounted(folder, size_mb)

    def fill(self) -> None:
        """Leave no byte."""
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


def _mounted(folder: Path, size_mb: int) -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
