"""Free ports on 127.0.0.1, picked once per data directory and remembered in it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from ductor_stream.errors import DevStackError

_FIRST, _LAST = 20_000, 32_000
"""Below the range from which Linux (32768 up) and macOS (49152 up) take the ports of outgoing
connections: a server's port must still be free when it comes back after a kill."""

_TRIES = 200
"""A machine on which 200 random ports of 12,000 are all taken has none to give."""

RANGE = "DUCTOR_DEV_PORTS"
"""``FIRST-LAST``: where a container or a firewall lets only some through, or two programs shall never take the same."""


def port_is_free(port: int) -> bool:
    """Whether nothing listens on ``port`` of 127.0.0.1."""
    with socket.socket() as probe:
        # Connections of the server that was here before may linger in TIME_WAIT: they do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def pick_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now.

    Raises:
        DevStackError: none was found, or DUCTOR_DEV_PORTS is no range.
    """
    first, last = _range()
    for _ in range(_TRIES):
        port = first + secrets.randbelow(last - first + 1)
        if port_is_free(port):
            return port
    raise DevStackError(
        f"no free port found on 127.0.0.1 between {first} and {last}: name others by {RANGE}=FIRST-LAST"
    )


def _range() -> tuple[int, int]:
    given = os.environ.get(RANGE)
    if not given:
        return _FIRST, _LAST
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", given)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < first <= last < 65_536:
        raise DevStackError(f"{RANGE}={given} is no range of ports: write FIRST-LAST, for example 20000-20100")
    return first, last


def remembered_ports(path: Path, wanted: Mapping[str, int | None]) -> dict[str, int]:
    """A port for each name in ``wanted``: the number given, else the one in the file ``path``, else a new one.

    A remembered port on which something listens by now is replaced. The outcome is written to ``path``.

    Raises:
        DevStackError: a port that was asked for is in use.
    """
    known = _read(path)
    ports: dict[str, int] = {}
    for name, given in wanted.items():
        if given is not None and not port_is_free(given):
            raise DevStackError(f"port {given} of 127.0.0.1 is in use: give another one, or none to have one picked")
        port = given or known.get(name)
        while port is None or port in ports.values() or (given is None and not port_is_free(port)):
            port = pick_port()
        ports[name] = port
    if ports != known:
        path.write_text(json.dumps(ports) + "\n", encoding="utf-8")
    return ports


def _read(path: Path) -> dict[str, int]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # absent, or cut off by a crash while it was written: pick anew
    if not isinstance(known, dict):
        return {}
    return {name: port for name, port in known.items() if isinstance(port, int)}
