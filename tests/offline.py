"""``python tests/offline.py COMMAND…``: run a command, and all that it starts, without a network; only loopback is there.

Linux gives such a process a network namespace of its own where it may have one (root, or unprivileged user
namespaces). Where it may not, exit status 3; ``WATCHING`` then has to do: in its environment each Python process refuses
every address and name beyond loopback. Both are used together where that is possible, since a refusal that the
command makes nothing of leaves no trace but the line that the hook writes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

NOT_HERE = 3
"""The exit status where no namespace can be had."""

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1

WATCHING = """
import errno, os, sys

def beyond(host):
    return isinstance(host, (str, bytes)) and os.fsdecode(host) not in ("", "localhost", "0.0.0.0", "::", "::1") \\
        and not os.fsdecode(host).startswith("127.")

def watch(event, args):
    if event in ("socket.connect", "socket.sendto"):
        host = args[1][0] if isinstance(args[1], tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    if beyond(host):
        with open(os.environ["OFFLINE_TOLD"], "a") as told:
            told.write(f"{event} {host} {sys.argv}\\n")
        raise OSError(errno.ENETUNREACH, f"no network in this test: {host}")

sys.addaudithook(watch)
"""
"""A ``sitecustomize.py``."""


def watched(folder: Path, told: Path) -> dict[str, str]:
    """What to set so that Python processes are watched, by a file in that folder; what they refuse they write to ``told``."""
    (folder / "sitecustomize.py").write_text(WATCHING, "utf-8")
    told.touch()
    # Nothing listens on port 9: what takes a proxy takes this one, and fails.
    proxies = dict.fromkeys(
        ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"
    )
    return proxies | {"PYTHONPATH": str(folder), "OFFLINE_TOLD": str(told)}


def _isolate() -> None:
    """Leave this machine's network, and bring loopback up. Raises OSError where that may not be."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Root stays root: in a namespace of users Postgres could not be started as somebody else.
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_NET if user == 0 else _NEW_USER | _NEW_NET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(asked, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0)))
        fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def main() -> None:
    """Never returns."""
    try:
        _isolate()
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"no network namespace here: {error}\n")
        sys.exit(NOT_HERE)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
