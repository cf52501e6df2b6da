"""Which server is connected to, and what is said when it does not do what is asked: ``doctor`` and ``migrate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest

from ductor_stream.cli.failures import remedy
from ductor_stream.errors import StoreUnavailable
from ductor_stream.store import inspection
from ductor_stream.store.inspection import inspect_postgres
from ductor_stream.store.migrate import migrate

SERVERS = "postgresql://one,two/shop"


class Session:
    """A connection that ends the look here, or whose statements fail with ``error``."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, text: bytes | str, *_: object) -> Any:
        if "lock_timeout" not in str(text):
            raise self._error


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Look at a pair of servers of which one can, or cannot, be written to: the targets that were asked for."""

    def look(primary: bool) -> list[str]:
        targets: list[str] = []

        def connect(dsn: str, target_session_attrs: str = "left out", **_: object) -> Session:
            targets.append(target_session_attrs)
            if target_session_attrs == "read-write" and not primary:
                raise psycopg.OperationalError("session is read-only")
            return Session(psycopg.Error("that is all"))

        monkeypatch.setattr(inspection.psycopg, "connect", connect)
        with pytest.raises(StoreUnavailable, match="that is all"):
            inspect_postgres(SERVERS, "shop")
        return targets

    return look


def test_doctor_looks_at_the_server_that_can_be_written_to(asked: Callable[[bool], list[str]]) -> None:
    assert asked(True) == ["read-write", "read-write"]


def test_doctor_looks_at_a_standby_where_nothing_else_is(asked: Callable[[bool], list[str]]) -> None:
    assert asked(False) == ["read-write", "any", "read-write", "any"]


def test_a_migration_that_waits_for_a_lock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    error = psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
    monkeypatch.setattr("ductor_stream.store.migrate.psycopg.connect", lambda *_, **__: Session(error))
    with pytest.raises(StoreUnavailable) as told:
        migrate(SERVERS)
    assert "another session keeps locked what the migration needs, for over 30s" in str(told.value)
    assert "cannot be reached" not in str(told.value)
    assert "try again" in remedy(told.value) and "DUCTOR_DATABASE_URL" not in remedy(told.value)
