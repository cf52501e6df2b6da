"""Services of one process start together and end together."""

from __future__ import annotations

import threading

import pytest
from support import until

from ductor_stream.wiring.group import Group, Service


class Fake:
    """A service that runs until it is stopped, or fails when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = False
        self.error: Exception | None = None
        self.stop_error: Exception | None = None
        self.trouble: list[str] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        self.running = True
        self._stopping.wait(30)
        self.running = False
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stopping.set()
        if self.stop_error is not None:
            raise self.stop_error

    def service(self) -> Service:
        return Service(self.name, self.run, self.stop, lambda: self.trouble)


def started(*fakes: Fake) -> Group:
    group = Group([fake.service() for fake in fakes])
    group.start()
    until(lambda: all(fake.running for fake in fakes))
    return group


def test_stop_ends_all_of_them_and_waits() -> None:
    first, second = Fake("coordinator"), Fake("worker")
    group = started(first, second)
    assert group.wait(0) is False
    group.stop()
    assert not first.running
    assert not second.running


def test_when_one_fails_the_group_hears_of_it_and_says_why() -> None:
    first, second = Fake("coordinator"), Fake("worker")
    group = started(first, second)
    first.error = ValueError("broken")
    first.stop()
    assert group.wait(10)
    assert group.ready() == ["the process is ending"]
    with pytest.raises(ValueError, match="broken"):
        group.stop()
    assert not second.running


def test_a_stop_that_fails_does_not_leave_the_others_running() -> None:
    first, second = Fake("coordinator"), Fake("worker")
    first.stop_error = RuntimeError("cannot stop")
    group = started(first, second)
    with pytest.raises(RuntimeError, match="cannot stop"):
        group.stop()
    assert not second.running


def test_ready_names_the_service_that_has_a_problem() -> None:
    first, second = Fake("coordinator"), Fake("worker")
    group = started(first, second)
    assert group.ready() == []
    second.trouble.append("Kafka cannot be reached")
    assert group.ready() == ["worker: Kafka cannot be reached"]
    group.stop()


def test_a_group_that_was_never_started_can_be_stopped() -> None:
    Group([Fake("coordinator").service()]).stop()
