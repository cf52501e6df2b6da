"""The watch on the cluster: what is asked of it while it looks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support import until

from ductor_stream.kafka import watch
from ductor_stream.protocol.topics import Topics


class Admin:
    """A client that only polls."""

    def poll(self, timeout: float) -> None: ...


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Each listing of the topics; it ends when its event is set."""
    begun: list[threading.Event] = []

    def listed(*_asked: Any) -> list[str]:
        begun.append(goes_on := threading.Event())
        goes_on.wait(30)
        return []

    monkeypatch.setattr(watch, "list_names", listed)
    monkeypatch.setattr(watch, "describe", lambda *_asked: watch.Described({}))
    return begun


def test_who_asks_for_another_look_while_there_is_one_gets_it(lists: list[threading.Event]) -> None:
    admin: Any = Admin()
    looking = watch.ClusterWatch(admin, "nowhere", Topics("shop"))
    looking.start()
    until(lambda: len(lists) == 1)
    looking.look_again()
    lists[0].set()
    until(lambda: len(lists) == 2, what="another listing")
    lists[1].set()
    looking.close()


def test_a_listing_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []

    def listed(*_asked: Any) -> list[str]:
        failed.append(1)
        if len(failed) == 1:
            raise watch.LogUnavailable("no answer")
        return []

    monkeypatch.setattr(watch, "list_names", listed)
    monkeypatch.setattr(watch, "describe", lambda *_asked: watch.Described({}))
    monkeypatch.setattr(watch, "ASK_SECONDS", 0.01)
    admin: Any = Admin()
    looking = watch.ClusterWatch(admin, "nowhere", Topics("shop"))
    looking.start()
    until(lambda: len(failed) == 2 and looking.healthy(), what="an answer")
    looking.close()
