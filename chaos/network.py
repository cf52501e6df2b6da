"""The network between all processes: each port that others use is a gate, and a gate knows who is calling.

A caller is known by its process, which the kernel tells for each connection on this machine: so the traffic between any
two of them can be cut, refused or delayed, although all of them share one loopback interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["cut", "one way", "refused", "slow"]
KINDS: tuple[Kind, ...] = ("cut", "one way", "refused", "slow")
_CHUNK = 65_536
_TOGETHER_S = 0.01
"""For so long connections wait for others that want to be known too."""
_LAST_ROUNDS_S = 0.05
"""For so long who was accepted becomes a link, and what was closed is let go of its sockets."""
_LOOK_S = 0.02
"""How often bytes that are held back look whether they may go on."""


@dataclass(frozen=True)
class Weather:
    """What happens to bytes between two processes.

    ``cut``: nothing passes, in both directions, and nobody is told. ``one way``: answers do not pass. ``refused``:
    connections end, and new ones too. ``slow``: each piece takes ``delay_s`` longer.
    """

    kind: Kind
    delay_s: float = 0.0


@dataclass(eq=False)
class Link:
    """One connection through a gate. ``caller`` is empty until its process is known."""

    server: str
    caller: str
    peer: str
    known: asyncio.Event
    """Set when the kernel was asked who calls."""
    writers: tuple[asyncio.StreamWriter, ...] = ()

    @property
    def pair(self) -> tuple[str, str]:
        """Who talks to whom."""
        return _pair(self.caller, self.server)

    def end(self) -> None:
        """Close both sides."""
        for writer in self.writers:
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()


class Network:
    """All gates, in one thread. ``callers`` are known by ``register``; others are called ``""``."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        """Of what faults change from threads of their own; whoever reads has a whole dictionary, old or new."""
        self._pids: dict[int, str] = {}
        self._weather: dict[tuple[str, str], Weather] = {}
        self._loop = asyncio.new_event_loop()
        self._links: set[Link] = set()
        self._servers: list[asyncio.Server] = []
        self._asking: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="chaos-network", daemon=True)
        self._thread.start()

    def register(self, name: str, pid: int) -> None:
        """Connections of this process are of ``name``, those too that it has by now."""
        with self._changing:
            self._pids = {**{p: n for p, n in self._pids.items() if n != name}, pid: name}
        self._loop.call_soon_threadsafe(self._ask)

    def gate(self, name: str, port: int, caller: str = "") -> int:
        """Open a port that leads to ``port`` of 127.0.0.1, where ``name`` listens; returns it.

        ``caller`` is who calls, where only one does; else the kernel is asked.
        """

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._serve(Link(name, caller, _address(writer), asyncio.Event()), port, reader, writer)

        listener = socket.create_server(("127.0.0.1", 0))
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(accept, sock=listener), self._loop).result(10)
        self._servers.append(server)
        return int(listener.getsockname()[1])

    @contextmanager
    def weather(self, a: str, b: str, weather: Weather) -> Iterator[None]:
        """This weather between the two for as long as the block takes."""
        pair = _pair(a, b)
        with self._changing:
            self._weather = {**self._weather, pair: weather}
        if weather.kind == "refused":
            self._loop.call_soon_threadsafe(self._end, pair)
        try:
            yield
        finally:
            with self._changing:
                self._weather = {p: w for p, w in self._weather.items() if p != pair}

    def close(self) -> None:
        """End all of it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Whom a server has accepted when it is closed, it forgets, with the socket open: first nobody more is accepted.
        for server in self._servers:
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
        self._loop.run_until_complete(asyncio.sleep(_LAST_ROUNDS_S))
        for server in self._servers:
            server.close()
        for writer in [writer for link in self._links for writer in link.writers]:
            # Closed in good order, it would stay open for what its peer may never read.
            writer.transport.abort()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(asyncio.sleep(_LAST_ROUNDS_S))
        self._loop.close()

    def _ask(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._recognize())

    async def _recognize(self) -> None:
        """Ask the kernel for all at once: in a storm of connections one by one would take too long."""
        await asyncio.sleep(_TOGETHER_S)
        unknown = [link for link in self._links if not link.caller]
        callers = await asyncio.to_thread(_owners, {link.peer for link in unknown}, self._pids)
        for link in unknown:
            link.caller = callers.get(link.peer, "")
            link.known.set()
        if any(not link.known.is_set() for link in self._links):
            self._asking = self._loop.create_task(self._recognize())

    def _end(self, pair: tuple[str, str]) -> None:
        for link in [link for link in self._links if link.pair == pair]:
            link.end()

    async def _serve(self, link: Link, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link.writers = (writer,)
        self._links.add(link)
        if link.caller:
            link.known.set()
        else:
            self._ask()
        try:
            await link.known.wait()
            weather = self._weather.get(link.pair)
            if weather is not None and weather.kind == "refused":
                return
            there, back = await asyncio.open_connection("127.0.0.1", port)
            link.writers = (writer, back)
            await asyncio.gather(self._pump(link, reader, back, False), self._pump(link, there, writer, True))
        except OSError:
            return  # nobody listens there just now
        finally:
            link.end()
            self._links.discard(link)

    async def _pump(
        self, link: Link, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool
    ) -> None:
        try:
            while chunk := await source.read(_CHUNK):
                await self._passage(link, answers)
                target.write(chunk)
                await target.drain()
        except (OSError, RuntimeError):
            pass  # the other side is gone: so is this one
        finally:
            link.end()

    async def _passage(self, link: Link, answers: bool) -> None:
        weather = self._weather.get(link.pair)
        if weather is not None and weather.kind == "slow":
            await asyncio.sleep(weather.delay_s)
        while (weather := self._weather.get(link.pair)) is not None:
            if weather.kind == "slow" or (weather.kind == "one way" and not answers):
                return
            await asyncio.sleep(_LOOK_S)


def callers_are_known() -> bool:
    """Whether this kernel tells whose a connection is."""
    return Path("/proc/net/tcp").exists()


def _address(writer: asyncio.StreamWriter) -> str:
    host, port = writer.get_extra_info("peername")[:2]
    return f"{_hex(host)}:{port:04X}"


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


def _hex(host: str) -> str:
    return "".join(f"{byte:02X}" for byte in reversed(socket.inet_aton(host)))


def _owners(peers: set[str], pids: Mapping[int, str]) -> dict[str, str]:
    """By address: whose process has that end of the connection."""
    inodes: dict[str, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                # The JVM's sockets are of the other family, with the same address at their end.
                if (local := fields[1][-13:]) in peers and fields[9] != "0":
                    inodes[f"socket:[{fields[9]}]"] = local
    found: dict[str, str] = {}
    for pid, name in pids.items():
        found.update({inodes[each]: name for each in _sockets(pid) if each in inodes})
    return found


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)
