"""Kafka's jars: fetched from a mirror, checked, refused, kept; and the AOT cache that is optional."""

from __future__ import annotations

import functools
import gc
import hashlib
import http.server
import logging
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from ductor_stream.dev import aot, jars, kafka
from ductor_stream.dev.jars import Jar, ensure_jars
from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.process import command_line
from ductor_stream.errors import DevStackError

# jgo leaves the answer to a request that failed unread and unclosed.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

NAMES = [f"part{n}" for n in range(6)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """Of a proxy, the whole address is asked for."""
        self.server.hosts.add(urlsplit(self.path).hostname)  # type: ignore[attr-defined]
        self.path = urlsplit(self.path).path
        super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


class Mirror:
    """A Maven repository on 127.0.0.1 with a few small "jars"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))
        )
        self.server.asked = []  # type: ignore[attr-defined]
        self.server.hosts = set()  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.listed = [self._add(name) for name in NAMES]

    @property
    def asked(self) -> list[str]:
        return [path for path in self.server.asked if path.endswith(".jar")]  # type: ignore[attr-defined]

    def path(self, name: str) -> Path:
        return self.folder / "org" / "example" / name / "1.0" / f"{name}-1.0.jar"

    def _add(self, name: str) -> Jar:
        path = self.path(name)
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode() * 1000)
        return Jar(f"org.example:{name}:1.0", hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    made = Mirror(tmp_path / "mirror")
    monkeypatch.setenv("DUCTOR_MAVEN_REPOSITORY", made.url + "/")
    monkeypatch.setenv("DUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
        gc.collect()  # here, and not in a later test whose warnings count


def test_jars_are_fetched_once_from_the_mirror(mirror: Mirror) -> None:
    first = ensure_jars(jars=mirror.listed)
    assert [path.read_bytes() for path in first] == [mirror.path(name).read_bytes() for name in NAMES]
    assert len(mirror.asked) == len(NAMES)
    assert ensure_jars(jars=mirror.listed) == first
    assert len(mirror.asked) == len(NAMES)


def test_a_companys_proxy_is_asked(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUCTOR_MAVEN_REPOSITORY", "http://maven.company.invalid")
    with pytest.raises(DevStackError, match="check the network, HTTPS_PROXY"):
        ensure_jars(jars=mirror.listed[:1])
    monkeypatch.setenv("HTTP_PROXY", mirror.url)
    assert len(ensure_jars(jars=mirror.listed)) == len(NAMES)
    assert mirror.server.hosts == {"maven.company.invalid"}  # type: ignore[attr-defined]


def test_a_companys_certificate_authority_is_believed_when_it_is_named(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    plain = mirror.server.socket
    mirror.server.socket = context.wrap_socket(plain, server_side=True)
    monkeypatch.setattr(mirror.server, "handle_error", lambda *_: None)  # who hangs up is no error of the mirror
    monkeypatch.setenv("DUCTOR_MAVEN_REPOSITORY", mirror.url.replace("http:", "https:"))
    with pytest.raises(DevStackError, match="REQUESTS_CA_BUNDLE"):
        ensure_jars(jars=mirror.listed[:1])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    assert len(ensure_jars(jars=mirror.listed)) == len(NAMES)


def test_other_bytes_than_listed_are_refused_and_not_kept(mirror: Mirror, tmp_path: Path) -> None:
    mirror.path("part3").write_bytes(b"evil")
    with pytest.raises(DevStackError, match=r"org\.example:part3:1\.0 has sha256"):
        ensure_jars(jars=mirror.listed)
    kept = [path.name for path in (tmp_path / "cache").rglob("part*.jar")]
    assert "part3-1.0.jar" not in kept


def test_a_jar_that_changed_in_the_cache_is_refused(mirror: Mirror) -> None:
    changed = ensure_jars(jars=mirror.listed)[2]
    changed.write_bytes(b"evil")
    with pytest.raises(DevStackError, match=r"part2:1\.0 has sha256 .* delete .*part2-1\.0\.jar"):
        ensure_jars(jars=mirror.listed)


def test_a_jar_that_cannot_be_had_is_named_with_the_remedy(mirror: Mirror) -> None:
    mirror.path("part1").unlink()
    with pytest.raises(DevStackError, match=r"^org\.example:part1:1\.0 could not be fetched") as failure:
        ensure_jars(jars=mirror.listed)
    assert "DUCTOR_MAVEN_REPOSITORY" in str(failure.value)
    assert "\n" not in str(failure.value)


def test_two_processes_at_once_fetch_each_jar_once(mirror: Mirror, tmp_path: Path) -> None:
    listing = tmp_path / "listing.txt"
    listing.write_text("".join(f"{jar.coordinate} {jar.sha256}\n" for jar in mirror.listed), encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from ductor_stream.dev.jars import *\n"
        "print(*ensure_jars(jars=listed_jars(Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", program, str(listing)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(told)) == 1
    assert len(mirror.asked) == len(NAMES)


def test_a_home_that_cannot_be_written_is_replaced_by_the_data_folder(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUCTOR_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "home").write_text("a file, as no permission stops root", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    fallback = tmp_path / "data" / "cache"
    assert ensure_jars(fallback, mirror.listed)[0].is_relative_to(fallback)
    with pytest.raises(DevStackError, match="DUCTOR_CACHE_DIR"):
        ensure_jars(None, [*mirror.listed, Jar("org.example:other:1.0", "0" * 64)])


def test_the_committed_list_is_whole() -> None:
    listed = jars.listed_jars()
    assert f"org.apache.kafka:kafka_2.13:{jars.KAFKA_VERSION}" in {jar.coordinate for jar in listed}
    assert len({jar.filename for jar in listed}) == len(listed)
    assert all(len(jar.sha256) == 64 for jar in listed)
    assert "://" not in jars.LIST.read_text(encoding="utf-8")


def test_without_an_aot_cache_the_broker_is_only_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = ensure_jars()
    monkeypatch.setenv("DUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def fail(*_arguments: object) -> None:
        raise DevStackError("the disk is full")

    monkeypatch.setattr(aot, "_train", fail)
    with caplog.at_level(logging.WARNING, "ductor_stream.dev"):
        assert aot.aot_flags(found) == []
    assert "the disk is full" in caplog.text


@pytest.mark.parametrize("cache", ["ours", "none of a JVM"])
def test_the_broker_runs_from_the_aot_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Where it does not, nobody is told: every start is a second slower. ``AOTMode=on`` is the JVM's refusal to run without."""
    [flag] = aot.aot_flags(ensure_jars())
    name, _, path = flag.partition("=")
    assert name == "-XX:AOTCache"
    assert Path(path).stat().st_size > 1_000_000, "a cache of Kafka's classes and no empty file"
    bad = tmp_path / "bad.aot"
    bad.write_bytes(b"evil" * 1_000)

    def strictly(jars: Sequence[Path], fallback: Path | None = None) -> list[str]:
        found = aot.aot_flags(jars, fallback) if cache == "ours" else [f"-XX:AOTCache={bad}"]
        return [*found, "-XX:AOTMode=on"]

    monkeypatch.setattr(kafka, "aot_flags", strictly)
    server = EmbeddedKafka(tmp_path / "kafka")
    if cache != "ours":
        with pytest.raises(DevStackError, match="(?i)aot"):
            server.start()
        return
    server.start()
    try:
        assert server.pid is not None
        assert flag in command_line(server.pid)
    finally:
        server.stop()
