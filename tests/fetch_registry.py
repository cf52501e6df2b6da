"""Apicurio, a schema registry that speaks Confluent's API: ``python tests/fetch_registry.py .tools/apicurio``.

159 MB, fetched as a Maven coordinate like Kafka's jars, from the same repository, unless this version is there already.
Ends with 1 and one line where it cannot be had, a quarter of an hour at the latest.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

from jgo.maven import MavenContext

GROUP, ARTIFACT, VERSION = "io.apicurio", "apicurio-registry-app", "3.3.3"
REMEDY = "check the network, HTTPS_PROXY and REQUESTS_CA_BUNDLE, or name a mirror in DUCTOR_MAVEN_REPOSITORY"
DIGEST = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_TIMEOUT_S = 60
"""For an answer, or for more of it."""

_ALL_WITHIN_S = 900


def fetch(target: Path) -> None:
    """Unpack it there, in the place of another version."""
    if (target / "app" / f"{ARTIFACT}-{VERSION}.jar").exists():
        target.touch()  # newer than this file: else make would ask each time
        return
    mirror = os.environ.get("DUCTOR_MAVEN_REPOSITORY")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        remotes = {"mirror": mirror.rstrip("/")} if mirror else None
        context = MavenContext(repo_cache=Path(folder, "repository"), remote_repos=remotes, timeout=_TIMEOUT_S)
        archive = context.project(GROUP, ARTIFACT).at_version(VERSION).artifact(classifier="all", packaging="tar.gz")
        packed = Path(archive.resolve())
        with packed.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != DIGEST:
                raise OSError(f"{ARTIFACT} {VERSION} has other bytes than those that are known")
        with tarfile.open(packed) as files:
            files.extractall(Path(folder, "unpacked"), filter="data")
        if target.exists():
            target.rename(Path(folder, "before"))
        Path(folder, "unpacked").rename(target)
        target.touch()


def give_up(*_: object) -> None:
    """A signal handler. What it raises no library takes for an answer that did not come."""
    raise SystemExit(f"the schema registry could not be fetched within {_ALL_WITHIN_S} s: {REMEDY}")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_ALL_WITHIN_S)
    try:
        fetch(Path(sys.argv[1]).absolute())
    except Exception as error:  # jgo raises RuntimeError, requests' and urllib3's errors alike
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SystemExit(f"the schema registry could not be fetched ({reason}): {REMEDY}") from error
