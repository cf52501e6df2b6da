"""What a coordinator refuses to start on, and that it names the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from e2e.commands import Folder
from rig import Rig, opened
from servers import fresh_database
from support import until

from ductor_stream.cli.failures import REFUSED
from ductor_stream.errors import DuctorError, SchemaMismatch, TopicsNotReady
from ductor_stream.store import migrate as migrating
from ductor_stream.store.migrate import Migration, migrate

if TYPE_CHECKING:
    from servers import KafkaServer, PostgresServer


@pytest.fixture
def own(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Rig]:
    """A rig whose schema may be changed, on which a coordinator has run: the namespace has two run partitions."""
    with fresh_database(postgres.url) as url:
        migrate(url)
        with opened(kafka.bootstrap, url, tmp_path) as rig:
            rig.coordinator().stop()
            yield rig


def execute(rig: Rig, statement: str) -> None:
    with psycopg.connect(rig.database) as connection:
        connection.execute(statement.encode())


def too_old(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    """This release is a later one, and wants one more migration before it is deployed."""
    known = (*migrating.migrations(), Migration(9001, "pre", "add_colour", b""))
    patch.setattr(migrating, "migrations", lambda: known)


def too_new(rig: Rig, _: object = None) -> None:
    execute(rig, "insert into eec_schema (version, phase, name) values (9999, 'post', 'later')")


def unequal(rig: Rig, _: object = None) -> None:
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    [raised] = admin.create_partitions([NewPartitions(rig.topics.run_events, 4)]).values()
    raised.result(10)


def fewer_than_n(rig: Rig, _: object = None) -> None:
    execute(rig, f"update eec_namespace set partitions = 6 where name = '{rig.namespace}'")


def gone(rig: Rig, _: object = None) -> None:
    rig.delete(rig.topics.wakeups)


REFUSALS: list[tuple[Callable[[Rig, pytest.MonkeyPatch], None], type[DuctorError], str]] = [
    (too_old, SchemaMismatch, r"too old \(missing: 9001_pre_add_colour\): run `ductor-stream migrate`"),
    (too_new, SchemaMismatch, r"newer than this release \(it has 9999_post_later\): upgrade ductor-stream"),
    (
        unequal,
        TopicsNotReady,
        r"the inbound topics differ\); raise it: kafka-topics.sh --alter --topic \S+wakeups --partitions 4",
    ),
    (
        fewer_than_n,
        TopicsNotReady,
        r"created with 6 run partitions\); raise it: kafka-topics.sh .*run-events --partitions 6",
    ),
    (gone, TopicsNotReady, r"wakeups is missing: create it by `ductor-stream topics create`"),
]


@pytest.mark.parametrize(("breaks", "error", "told"), REFUSALS, ids=[breaks.__name__ for breaks, *_ in REFUSALS])
def test_a_coordinator_names_what_mends_it(
    own: Rig,
    breaks: Callable[[Rig, pytest.MonkeyPatch], None],
    error: type[DuctorError],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaks(own, monkeypatch)

    def refused() -> bool:
        """A broker takes a moment to know what was done to it."""
        try:
            own.coordinator(ready=False).stop()
        except error as refusal:
            assert re.search(told, str(refusal)), refusal
            return True
        return False

    until(refused, what=told)


def test_topics_check_ends_with_4_on_unequal_topics(own: Rig, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"from ductor_stream import App\napp = App({own.namespace!r})\n", "utf-8")
    folder = Folder(tmp_path)
    check = ("topics", "check", "shop:app", "--kafka", own.bootstrap, "--database", own.database)
    done = folder.run(*check)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    unequal(own)

    def refused() -> bool:
        done = folder.run(*check)
        assert done.returncode == REFUSED == 4, done
        for name in (own.topics.attempt_results, own.topics.wakeups):
            assert f"kafka-topics.sh --alter --topic {name} --partitions 4" in done.stdout
        return True

    until(refused)
