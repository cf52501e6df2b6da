"""Servers for the tests that need them, taken in this order:

1. ``DUCTOR_TEST_KAFKA`` (a bootstrap address) and ``DUCTOR_TEST_DATABASE`` (a superuser's URL);
2. containers, if ``DUCTOR_TEST_CONTAINERS=1`` and a Docker daemon answers;
3. the embedded ones.

One of each serves the whole session: a test keeps to its own namespace (``support.fresh_name``) and
its own database (``database_url``). A test that kills a server takes ``own_kafka`` or
``own_postgres``, which are always embedded. Unit tests ask for none of these and pay nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

LONGEST = ("test_newcomer", "test_simulation", "test_checkers_bite", "e2e", "test_model")
PORTS = range(20_000, 32_000)
"""Below those of outgoing connections (ductor_stream/dev/ports.py)."""

if TYPE_CHECKING:
    from servers import KafkaServer, PostgresServer

    from ductor_stream.dev.kafka import EmbeddedKafka
    from ductor_stream.dev.postgres import EmbeddedPostgres


def pytest_configure() -> None:
    """Groups of tests that run beside each other (``-n 2``) take ports of their own, and all that they start does too.

    A port that is free now is taken a second later: by a server of the other group, once in a hundred runs.
    """
    if (name := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
        share = (PORTS.stop - PORTS.start) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = PORTS.start + share * int(name.removeprefix("gw"))
        os.environ["DUCTOR_DEV_PORTS"] = f"{first}-{first + share - 1}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, each tier in its random order: the groups end together, with short files at the end."""

    def place(item: pytest.Item) -> int:
        return next(
            (n for n, name in enumerate(LONGEST) if name in (item.path.stem, item.path.parent.name)), len(LONGEST)
        )

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What could not be tried, since it is not installed, is said at the end, where it is seen: the tests have passed."""
    from ductor_stream.dev.binaries import installations

    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    told = [f"a stand-in was tested: {each}" for each in passed if " is not here" in each]
    if len(installations()) < 2 and any("/test_store_" in each for each in passed):
        told.append("the store was tested on one Postgres alone: no second one is in /usr/lib/postgresql")
    for line in told:
        terminalreporter.write_line(f"WARNING: {line}", yellow=True, bold=True)


@pytest.fixture(autouse=True)
def metrics_that_move(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is marked with ``moves("ductor_lag", …)`` fails where one of these metrics had no value but 0."""
    named = {name for mark in request.node.iter_markers("moves") for name in mark.args}
    if not named:
        yield
        return
    from prometheus_client import values

    moved: set[str] = set()

    class Noting(values.MutexValue):  # type: ignore[misc]
        def __init__(self, typ: str, metric_name: str, *more: object, **named: object) -> None:
            super().__init__(typ, metric_name, *more, **named)
            self._of = metric_name

        def inc(self, amount: float) -> None:
            super().inc(amount)
            if amount:
                moved.add(self._of)

        def set(self, value: float, timestamp: float | None = None) -> None:
            super().set(value, timestamp)
            if value:
                moved.add(self._of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "ValueClass", Noting)
        yield
    assert not named - moved, "never moved"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """The session's Kafka; ``.bootstrap`` is its address."""
    from servers import session_kafka

    with session_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The session's Postgres; ``.url`` is a superuser's URL of its database ``postgres``."""
    from servers import session_postgres

    with session_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database that is this test's alone, dropped after it."""
    from servers import fresh_database

    with fresh_database(postgres.url) as url:
        yield url


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A started Kafka that is this test's alone: to kill, stop and restart."""
    from ductor_stream.dev.kafka import EmbeddedKafka

    server = EmbeddedKafka(tmp_path / "own-kafka")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A started Postgres that is this test's alone: to kill, stop and restart. ``.url`` is its ``postgres`` database."""
    from ductor_stream.dev.postgres import EmbeddedPostgres

    server = EmbeddedPostgres(tmp_path / "own-postgres")
    server.start()
    try:
        yield server
    finally:
        server.stop()
