"""A TCP proxy whose two directions can be held back or cut, to lose a request or an answer on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit


class TcpProxy:
    """Forwards 127.0.0.1:``port`` to a server. Each direction flows until it is held."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._answers = threading.Event()
        self._requests = threading.Event()
        self._answers.set()
        self._requests.set()
        self._closed = False
        self.held_answers = 0
        """Bytes that the server sent while its answers were held."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_answers(self) -> None:
        """What the server sends no longer reaches the client."""
        self._answers.clear()

    def hold_requests(self) -> None:
        """What the client sends no longer reaches the server."""
        self._requests.clear()

    def cut(self) -> None:
        """Close all connections, with what is held in them; new ones flow again."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._answers.set()
        self._requests.set()

    def close(self) -> None:
        """End."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            if self._closed:
                self.cut()
            threading.Thread(target=self._pump, args=(client, server, self._requests), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, flows: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if flows is self._answers and not flows.is_set():
                    self.held_answers += len(chunk)
                flows.wait()
                target.sendall(chunk)
        # One side has ended: so does the other.
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def proxied(url: str) -> Iterator[tuple[TcpProxy, str]]:
    """A proxy before the server of a URL, and the URL through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = TcpProxy(parts.hostname, parts.port)
    credentials = parts.netloc.rpartition("@")[0]
    netloc = f"{credentials}@127.0.0.1:{proxy.port}" if credentials else f"127.0.0.1:{proxy.port}"
    try:
        yield proxy, urlunsplit(parts._replace(netloc=netloc))
    finally:
        proxy.close()
