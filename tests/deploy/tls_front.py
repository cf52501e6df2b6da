"""TLS in front of a Postgres that is built without it (as the embedded one is): what a proxy or a pooler does.

To a client it is a server that insists on TLS: it answers the request for it, proves who it is, and closes the door on
whoever would go on without.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

_WANTS_TLS, _WANTS_KERBEROS = (80877103).to_bytes(4), (80877104).to_bytes(4)
_CHUNK = 65536


class TlsFront:
    """Listens on ``port`` and passes on to ``server``; ``refused`` counts those who did not ask for TLS."""

    def __init__(self, server: tuple[str, int], certificate: Path) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refused = 0
        threading.Thread(target=self._listen, name="tls-front", daemon=True).start()

    def close(self) -> None:
        """Take nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A client may go at any moment, and one that does not trust us does so in the middle of the greeting.
        with client, contextlib.suppress(OSError):
            asked = _asked(client)
            while asked == _WANTS_KERBEROS:
                client.sendall(b"N")
                asked = _asked(client)
            if asked != _WANTS_TLS:
                self.refused += 1
                return
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as inside,
                socket.create_connection(self._server) as server,
            ):
                _pump(inside, server)


def _asked(client: socket.socket) -> bytes:
    return client.recv(8, socket.MSG_WAITALL)[4:]


def _pump(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Both ways in one thread: two must not use one TLS connection at a time."""
    ways: dict[socket.socket, socket.socket] = {client: server, server: client}
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in ready:
            content = source.recv(_CHUNK)
            if not content:
                return
            ways[source].sendall(content)


@contextlib.contextmanager
def tls_front(server: tuple[str, int], certificate: Path) -> Iterator[TlsFront]:
    """One, for as long as the block lasts."""
    front = TlsFront(server, certificate)
    try:
        yield front
    finally:
        front.close()
