"""One migrated database for all tests with fleets; each keeps to a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rig import Rig, opened
from servers import fresh_database

from ductor_stream.store.migrate import migrate

if TYPE_CHECKING:
    from servers import KafkaServer, PostgresServer


@pytest.fixture(scope="session")
def runs_database(postgres: PostgresServer) -> Iterator[str]:
    """Its URL."""
    with fresh_database(postgres.url) as url:
        migrate(url)
        yield url


@pytest.fixture
def rig(kafka: KafkaServer, runs_database: str, tmp_path: Path) -> Iterator[Rig]:
    """A namespace with six partitions, so that three coordinators have something to share."""
    with opened(kafka.bootstrap, runs_database, tmp_path, partitions=6) as made:
        yield made
