"""The network of chaos: who calls is known by process, and the weather between two of them holds for those two."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import free_port, until

from chaos.network import Network, Weather

CALL = "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),5); s.settimeout(5);"
ECHO = CALL + "sys.stdin.readline(); s.sendall(b'x'); print(s.recv(1) or b'ended', flush=True)"


@contextmanager
def echoing() -> Iterator[int]:
    """A server that answers what it is sent; its port."""
    listener = socket.create_server(("127.0.0.1", free_port()))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while chunk := connection.recv(100):
                connection.sendall(chunk)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def network() -> Iterator[Network]:
    """A network in which this process is ``me``."""
    made = Network()
    made.register("me", os.getpid())
    yield made
    made.close()


def asked(port: int, timeout: float = 5.0) -> bytes:
    """What comes back when we send an x."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(timeout)
        connection.sendall(b"x")
        return connection.recv(1)


def test_who_is_accepted_while_it_ends_is_closed() -> None:
    """Else the collector closes it some time later, with a warning in whatever runs then."""
    with echoing() as port:
        for _ in range(20):
            made = Network()
            gate = made.gate("server", port)
            calls = [socket.create_connection(("127.0.0.1", gate), 5) for _ in range(20)]
            made.close()
            for call in calls:
                with call, contextlib.suppress(ConnectionError):
                    call.settimeout(5)
                    assert call.recv(1) == b""
    gc.collect()


@pytest.mark.parametrize("kind", ["cut", "one way"])
def test_what_is_cut_does_not_pass_until_it_is_over(network: Network, kind: str) -> None:
    with echoing() as port:
        gate = network.gate("server", port)
        assert asked(gate) == b"x"
        with socket.create_connection(("127.0.0.1", gate), 5) as connection:
            connection.settimeout(0.3)
            with network.weather("server", "me", Weather(kind)):  # type: ignore[arg-type]
                connection.sendall(b"x")
                with pytest.raises(TimeoutError):
                    connection.recv(1)
            connection.settimeout(5)
            assert connection.recv(1) == b"x"


def test_what_is_refused_ends_old_connections_and_new_ones(network: Network) -> None:
    with echoing() as port:
        gate = network.gate("server", port)
        with socket.create_connection(("127.0.0.1", gate), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            with network.weather("me", "server", Weather("refused")):
                assert connection.recv(1) == b""
                assert until(lambda: _refused(gate), what="a new connection refused")
        assert asked(gate) == b"x"


def _refused(gate: int) -> bool:
    try:
        return asked(gate) == b""
    except OSError:
        return True


def test_others_have_other_weather(network: Network) -> None:
    with echoing() as port:
        gate = network.gate("server", port)
        child = subprocess.Popen(
            [sys.executable, "-c", ECHO, str(gate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        network.register("child", child.pid)
        with network.weather("me", "server", Weather("cut")):
            said, _ = child.communicate("\n", timeout=30)
        assert said == "b'x'\n"
        with network.weather("child", "server", Weather("cut")):
            assert asked(gate) == b"x"
