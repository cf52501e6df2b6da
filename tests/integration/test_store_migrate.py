"""Migrations on real Postgres: all of them together equal schema.sql, and each lands once, as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from servers import fresh_database
from store_rigs import Background, database_fixture
from support import until

from ductor_stream.cli.schema import migrate as command
from ductor_stream.errors import SchemaMismatch, StoreUnavailable
from ductor_stream.store import migrate as migrating
from ductor_stream.store.migrate import Migration, check, migrate, migrations
from ductor_stream.store.queries import schema_sql

COLUMNS = """
select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attstorage,
       a.attcompression, pg_get_expr(d.adbin, d.adrelid)
  from pg_attribute a
  join pg_class c on c.oid = a.attrelid
  left join pg_attrdef d on (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
 where c.relname like 'eec_%' and c.relkind in ('r', 'v') and a.attnum > 0 and not a.attisdropped
 order by 1, 2"""

RELATIONS = """
select c.relname, c.relkind, c.reloptions, case when c.relkind = 'v' then pg_get_viewdef(c.oid) end
  from pg_class c
 where c.relname like 'eec_%' and c.relkind in ('r', 'v', 'i', 'S')
 order by 1"""

CONSTRAINTS = """
select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  from pg_constraint
 where conrelid::regclass::text like 'eec_%'
 order by 1, 2"""

INDEXES = "select indexname, indexdef from pg_indexes where tablename like 'eec_%' order by 1"


database = database_fixture()


@pytest.fixture
def dsn(database: str) -> Iterator[str]:
    """An empty database."""
    with fresh_database(database) as url:
        yield url


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> tuple[Migration, Migration]:
    """A later release: one more migration before its deployment, one after."""
    pre = Migration(9001, "pre", "add_colour", b"alter table eec_namespace add column colour text")
    post = Migration(9002, "post", "require_colour", b"alter table eec_namespace alter column colour set not null")
    known = (*migrations(), pre, post)
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    return pre, post


def dump(dsn: str) -> list[list[tuple[object, ...]]]:
    with psycopg.connect(dsn) as connection:
        return [connection.execute(query.encode()).fetchall() for query in (COLUMNS, RELATIONS, CONSTRAINTS, INDEXES)]


def labels() -> list[str]:
    return [migration.label for migration in migrations()]


def test_all_migrations_together_equal_the_schema(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(schema_sql().encode())
    with fresh_database(database) as migrated:
        migrate(migrated)
        for found, drawn in zip(dump(migrated), dump(dsn), strict=True):
            assert found == drawn
            assert found


def test_a_migration_is_applied_once(dsn: str) -> None:
    assert migrate(dsn, dry_run=True) == labels()
    assert dump(dsn)[0] == []
    assert migrate(dsn) == labels()
    assert migrate(dsn) == []
    assert migrate(dsn, dry_run=True) == []
    check(dsn)


def test_the_command_says_what_it_would_do_and_does_nothing(dsn: str) -> None:
    def said(*options: str) -> str:
        done = CliRunner().invoke(command, ["--database", dsn, *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert said("--dry-run").splitlines() == [f"would apply {label}" for label in labels()]
    assert json.loads(said("--dry-run", "--json")) == {"dry_run": True, "migrations": labels()}
    assert dump(dsn) == [[], [], [], []]
    assert said().splitlines() == [f"applied {label}" for label in labels()]
    assert said("--dry-run") == "the schema is up to date\n"


def test_two_migrators_at_once(dsn: str) -> None:
    calls = [Background(lambda: migrate(dsn)) for _ in range(4)]
    assert sorted(call.result() for call in calls) == [[], [], [], labels()]


def test_no_schema_names_the_command(dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"does not exist yet.*run `ductor-stream migrate`"):
        check(dsn)


def test_a_schema_that_is_too_old_names_the_command(dsn: str, request: pytest.FixtureRequest) -> None:
    migrate(dsn)
    request.getfixturevalue("later")
    with pytest.raises(SchemaMismatch, match=r"too old \(missing: 9001_pre_add_colour\): run `ductor-stream migrate`"):
        check(dsn)


def test_a_schema_that_is_too_new_names_the_remedy(dsn: str) -> None:
    migrate(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into eec_schema (version, phase, name) values (9002, 'post', 'require_colour')")
    for call in (check, migrate):
        with pytest.raises(SchemaMismatch, match=r"9002_post_require_colour.*upgrade ductor-stream"):
            call(dsn)


def test_the_release_before_still_runs_between_pre_and_post(dsn: str) -> None:
    migrate(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into eec_schema (version, phase, name) values (9001, 'pre', 'add_colour')")
    check(dsn)


def test_pre_before_and_post_after_the_deployment(dsn: str, later: tuple[Migration, Migration]) -> None:
    pre, post = later
    with pytest.raises(SchemaMismatch, match=r"9001_pre_add_colour must be applied before 9002_post_require_colour"):
        migrate(dsn, "post")
    assert migrate(dsn, "pre") == [m.label for m in (*(m for m in migrations() if m.phase == "pre"), pre)]
    check(dsn)  # the new release starts although its post migration is due
    assert migrate(dsn, "pre") == []
    assert migrate(dsn, "post") == [post.label]


def test_a_post_migration_of_before_holds_up_a_pre_migration(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Migration(9001, "post", "tidy", b"select 1")
    pre = Migration(9002, "pre", "more", b"select 1")
    known = (*migrations(), post, pre)
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    with pytest.raises(SchemaMismatch, match=r"9001_post_tidy must be applied before 9002_pre_more"):
        migrate(dsn, "pre")
    assert migrate(dsn)[-2:] == [post.label, pre.label]


def test_a_migration_that_fails_leaves_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(dsn)
    before = dump(dsn)
    bad = Migration(9001, "pre", "bad", b"create table eec_half (); select 1 / 0")
    known = (*migrations(), bad)
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    with pytest.raises(SchemaMismatch, match="division by zero"):
        migrate(dsn)
    assert dump(dsn) == before
    assert migrate(dsn, dry_run=True) == [bad.label]


def deadlock(dsn: str) -> None:
    """Another session that has row 2 and asks for row 1 as soon as the migration, which has row 1, waits for row 2."""
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn, autocommit=True) as watch:
        connection.execute("set deadlock_timeout = '60s'")  # the migration looks first, and is ended
        with connection.transaction():
            connection.execute("update t set n = 1 where id = 2")
            until(lambda: watch.execute(waits).fetchall() == [(1,)], within_ms=30_000)
            connection.execute("update t set n = 1 where id = 1")


@pytest.mark.parametrize("tries", [2, 1])
def test_a_migration_that_meets_a_deadlock_lands_or_says_what_to_do(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    migrate(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("create table t as select id, 0 as n from generate_series(1, 2) id")
    sql = b"set local deadlock_timeout = '3s'; update t set n = 7 where id = 1; update t set n = 7 where id = 2"
    known = (*migrations(), Migration(9001, "post", "rows", sql))
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    monkeypatch.setattr(migrating, "_TRIES", tries)
    other = Background(lambda: deadlock(dsn))
    until(lambda: locked(dsn), within_ms=30_000)
    if tries == 2:
        assert migrate(dsn) == ["9001_post_rows"]
    else:
        with pytest.raises(StoreUnavailable, match="1 times the migration .* run `ductor-stream migrate` again"):
            migrate(dsn)
        assert migrate(dsn, dry_run=True) == ["9001_post_rows"]
    other.result(60)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select n from t").fetchall() == [(7 if tries == 2 else 1,)] * 2


def locked(dsn: str) -> bool:
    """Whether the other session has row 2."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select id from t where id = 2 for update skip locked").fetchall() == []


def test_nobody_listens() -> None:
    for call in (check, migrate):
        with pytest.raises(StoreUnavailable):
            call("postgresql://127.0.0.1:1/none")
