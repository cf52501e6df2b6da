"""Folders for what is being made: gone when it is made, and also when the process that makes it is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Waits for the end of its standard input: that comes when its parent lets go, or dies, in whatever way. What was killed
# with the parent may write its last file meanwhile: hence again and again.
_GUARD = """
import os, shutil, sys, time
sys.stdin.buffer.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.05)
"""


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent``, deleted at the end of the block or of this process, also by ``kill -9``.

    Only the end of the whole machine leaves it there.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    command = [sys.executable, "-I", "-S", "-c", _GUARD, str(folder)]
    # In a session of its own: Ctrl-C in a terminal must not end the one that cleans up after it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/") as guard:
        try:
            yield folder
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()
