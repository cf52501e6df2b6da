"""A client whose destruction hangs holds nobody up."""

from __future__ import annotations

import threading

from support import until

from ductor_stream.kafka.options import Admin, EndsApart


class Slow:
    """Something that a client is made of, and that does not come to its end."""

    def __init__(self, ended: list[int], gate: threading.Event) -> None:
        self._ended, self._gate = ended, gate

    def __del__(self) -> None:
        self._ended.append(threading.get_ident())
        self._gate.wait()


class Client(EndsApart):
    def __init__(self, *parts: object) -> None:
        self.parts = parts


def test_its_end_comes_in_a_thread_of_its_own() -> None:
    ended: list[int] = []
    gate = threading.Event()
    client = Client(Slow(ended, gate))
    try:
        del client  # comes back, though the gate is shut
        until(lambda: ended, what="the end")
        assert ended != [threading.get_ident()]
    finally:
        gate.set()


def test_a_real_one_ends_once() -> None:
    before = set(threading.enumerate())
    admin = Admin({"bootstrap.servers": "127.0.0.1:1"})
    admin.poll(0)
    del admin
    assert set(threading.enumerate()) - before == set(), "no thread that Python would wait for"
