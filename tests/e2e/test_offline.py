"""After the installation nothing needs the network: README's app, ``demo`` and what is asked beside them, with loopback alone.

In a network namespace where this machine lets us have one, so that nothing else can be reached by whatever means. Where it
does not (a container without rights, macOS), every Python process refuses what is not loopback and says so, and on
Linux no process of all may be seen with a connection to elsewhere. The second way is gone everywhere.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import offline
import pytest
from e2e.commands import clean_environment, descendants
from pages import ROOT, blocks
from support import until

from ductor_stream.dev.paths import cache_dirs

WALK = """
set -eu
ductor() { "$PYTHON" -m ductor_stream.cli.main "$@"; }
"$PYTHON" -m ductor_stream.dev.fetch
ductor check shop:app
ductor dev shop:app &
trap 'ductor dev stop > dev.out 2>&1 || true; wait' EXIT
until ductor dev status > status.out 2>&1; do kill -0 $!; done
eval "$(ductor env)"
ductor start fulfil order-42 --input '"order-42"'
ductor runs watch order-42 --within 60
ductor runs show order-42
ductor doctor shop:app
ductor explain run_failed
ductor demo --orders 20
"""

PROBE = """
import socket, sys
with socket.socket() as probe:
    probe.settimeout(5)
    try:
        probe.connect(("192.0.2.1", 80))
    except OSError as error:
        sys.exit(error.errno)
"""
"""192.0.2.0/24 is nobody's: by an address of another network it is told whether one is there."""


class Walk:
    """Commands in a folder, without a network."""

    def __init__(self, folder: Path, *, namespace: bool) -> None:
        self.folder, self.told = folder, folder / "told.txt"
        for made in ("watching", "home"):
            (folder / made).mkdir()
        watched = offline.watched(folder / "watching", self.told)
        own = {"PYTHON": sys.executable, "HOME": str(folder / "home")}
        # The jars that `make install` has fetched are part of the installation, wherever they are.
        self.environment = clean_environment() | watched | own | {"DUCTOR_CACHE_DIR": str(cache_dirs()[0])}
        self.prefix = [sys.executable, str(ROOT / "tests/offline.py")] if namespace else []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "said.txt").open("wb") as said:
            return subprocess.Popen(
                [*self.prefix, *command], cwd=self.folder, env=self.environment, stdout=said, stderr=said
            )

    def said(self) -> str:
        return (self.folder / "said.txt").read_text("utf-8")


@pytest.mark.parametrize("namespace", [True, False])
def test_what_keeps_the_network_away_does(tmp_path: Path, namespace: bool) -> None:
    """Else the last test here could not fail."""
    walk = Walk(tmp_path, namespace=namespace)
    code = walk.start(sys.executable, "-c", PROBE).wait(60)
    if code == offline.NOT_HERE:
        assert "no network namespace here" in walk.said()
        return
    assert code == errno.ENETUNREACH and walk.told.read_text().startswith("socket.connect 192.0.2.1 ")
    if namespace:  # without the hook: the namespace alone
        del walk.environment["PYTHONPATH"]
        walk.told.write_text("")
        assert walk.start(sys.executable, "-c", PROBE).wait(60) == errno.ENETUNREACH
        assert walk.told.read_text() == ""


def connections(pids: list[int]) -> set[str]:
    """Addresses beyond loopback to which these processes have a connection, as Linux tells; none where it does not."""
    found = set()
    for pid in pids:
        try:
            sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
            tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6", "udp", "udp6")]
        except OSError:
            continue  # it has ended meanwhile
        for line in (line.split() for table in tables for line in table.splitlines()[1:]):
            if f"socket:[{line[9]}]" in sockets and not local(line[2].partition(":")[0]):
                found.add(line[2])
    return found


def local(written: str) -> bool:
    """Of an address as /proc/net has it: words of 32 bits in this machine's order."""
    words = [int(written[place : place + 8], 16) for place in range(0, len(written), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    inner = getattr(address, "ipv4_mapped", None) or address
    return inner.is_loopback or inner.is_unspecified


def test_connections_to_elsewhere_are_seen() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six,
    ):
        asked.connect(("127.0.0.1", 9))
        six.connect(("::1", 9))
        assert connections([os.getpid()]) == set()
    assert not local("010200C0") and not local("B80D0120000000000000000001000000") and local("0" * 32)
    assert local("0000000000000000FFFF00000100007F") and not local("0000000000000000FFFF0000010200C0")


def test_after_the_installation_nothing_needs_the_network(tmp_path: Path) -> None:
    [program] = blocks("README.md", "python")
    (tmp_path / "shop.py").write_text(program, "utf-8")
    alone = subprocess.run([sys.executable, str(ROOT / "tests/offline.py"), "true"], capture_output=True, check=False)
    walk = Walk(tmp_path, namespace=alone.returncode == 0)
    process = walk.start("sh", "-c", WALK)
    seen: set[str] = set()

    def ended() -> bool:
        seen.update(connections([process.pid, *descendants(process.pid)]))
        return process.poll() is not None

    try:
        until(ended, within_ms=180_000, what="the end of the walk")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert process.returncode == 0, walk.said()
    assert walk.told.read_text() == "" and seen == set()
    said = walk.said()
    for line in ("shop:app is running", "order-42 completed", "receipt for order-42", "no run lost"):
        assert line in said, said
