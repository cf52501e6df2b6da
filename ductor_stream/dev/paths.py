"""Where what was fetched once is kept: the jars of Kafka and the AOT cache of its JVM."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ductor_stream.errors import DevStackError

_NAME = "ductor-stream"


def cache_dirs(fallback: Path | None = None) -> list[Path]:
    """The folders that may hold the cache, in the order in which they are tried.

    ``DUCTOR_CACHE_DIR`` alone if it is set, else ``$XDG_CACHE_HOME/ductor-stream``, else
    ``~/.cache/ductor-stream``; last ``fallback`` (a folder under the data directory), for a home
    that does not exist or cannot be written.
    """
    if named := os.environ.get("DUCTOR_CACHE_DIR"):
        return [Path(named).absolute()]
    found: list[Path] = []
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        found.append(Path(xdg).absolute() / _NAME)
    try:
        found.append(Path.home() / ".cache" / _NAME)
    except RuntimeError:
        pass  # a uid without a passwd entry and without HOME has no home: the fallback serves
    if fallback is not None:
        found.append(fallback.absolute())
    return found


def writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``; it is created if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Tried rather than asked (os.access): root on a read-only mount is told yes and then fails.
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def writable_cache_dir(fallback: Path | None = None) -> Path:
    """The first of ``cache_dirs`` that can be written.

    Raises:
        DevStackError: none of them can; the message names them and the variable that names another.
    """
    candidates = cache_dirs(fallback)
    for folder in candidates:
        if writable(folder):
            return folder
    tried = ", ".join(map(str, candidates)) or "no home directory"
    raise DevStackError(f"no cache folder can be written ({tried}): set DUCTOR_CACHE_DIR to a folder that can")
