"""Servers that end by themselves are started again, and told of; one that ends again and again is given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from support import until

from ductor_stream.cli import dev
from ductor_stream.cli.running import stop_on_signals
from ductor_stream.dev.keeper import Keeper
from ductor_stream.dev.stack import DevStack
from ductor_stream.errors import DevStackError


class Servers:
    """What a keeper sees of a ``DevStack``."""

    data_dir = Path("/data")

    def __init__(self, *failures: DevStackError, endless: bool = False) -> None:
        self.down = [("Kafka", "killed by signal 9")]
        self.failures = list(failures)
        self.endless = endless
        self.revived = 0

    def ended(self) -> list[tuple[str, str]]:
        return list(self.down)

    def revive(self) -> None:
        if self.failures:
            raise self.failures.pop()
        self.revived += 1
        if not self.endless:
            self.down.clear()


def kept(servers: Servers, told: list[str], given_up: list[bool]) -> Keeper:
    return Keeper(cast(DevStack, servers), told.append, lambda: given_up.append(True))


def test_what_ended_is_started_again_and_told_in_a_line_each() -> None:
    servers, told, given_up = Servers(), list[str](), list[bool]()
    keeper = kept(servers, told, given_up)
    until(lambda: len(told) == 2)
    keeper.close()
    assert told == [
        "Kafka has ended (killed by signal 9): starting it again, on the same data and port",
        "Kafka runs again",
    ]
    assert (servers.revived, given_up, keeper.error) == (1, [], None)


def test_one_that_cannot_be_started_again_is_given_up_with_the_reason() -> None:
    told, given_up = list[str](), list[bool]()
    keeper = kept(Servers(DevStackError("port 21000 of 127.0.0.1 is in use")), told, given_up)
    until(lambda: given_up)
    keeper.close()
    assert "Kafka has ended (killed by signal 9) and cannot be started again: port 21000" in str(keeper.error)


def test_one_that_ends_again_and_again_is_given_up() -> None:
    servers, given_up = Servers(endless=True), list[bool]()
    keeper = kept(servers, [], given_up)
    until(lambda: given_up)
    keeper.close()
    assert servers.revived == 3
    assert "the 4th end within a minute" in str(keeper.error)


def test_dev_ends_in_order_and_says_why_when_a_server_cannot_be_kept_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: Any = Servers(DevStackError("port 21000 of 127.0.0.1 is in use"))
    servers.kafka = servers.postgres = None
    ended = list[bool]()
    servers.start, servers.stop = (lambda: None), (lambda: ended.append(True))
    monkeypatch.setattr(dev, "DevStack", lambda *_, **__: servers)
    given = {"kafka_bootstrap": "127.0.0.1:1", "database_url": "postgresql://x"}
    with (
        stop_on_signals() as stop,
        pytest.raises(DevStackError, match="Kafka has ended .* cannot be started again: port 21000"),
        dev.servers(tmp_path, given),
    ):
        assert stop.wait(10)  # whatever serves the app is told to end
    assert ended
