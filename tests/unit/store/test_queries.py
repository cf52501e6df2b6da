"""Every query stands under a header, and every migration under a name."""

from __future__ import annotations

import re
from pathlib import Path

import ductor_stream.store
from ductor_stream.store.grants import PURGER
from ductor_stream.store.migrate import migrations
from ductor_stream.store.queries import all_queries, numbered, schema_sql, sql

STORE = Path(ductor_stream.store.__file__).parent


def test_each_query_has_a_header_and_a_body() -> None:
    headers = sum(file.read_text().count("-- name: ") for file in (STORE / "sql/queries").glob("*.sql"))
    assert headers == len(all_queries())
    for query in all_queries().values():
        assert query.purpose
        assert query.index
        assert query.sql
        assert b";" not in re.sub(rb"--.*", b"", query.sql), f"{query.name} is more than one statement"


def test_each_index_that_a_header_names_is_in_the_schema() -> None:
    schema = schema_sql()
    keys = {f"{table}_pkey" for table in re.findall(r"create table (\w+)", schema)}
    named = set(re.findall(r"create (?:unique )?index (\w+)", schema)) | keys | {"eec_namespace_name_key"}
    for query in all_queries().values():
        assert set(query.indexes) <= named, query.name


def test_each_query_is_used() -> None:
    source = "".join(file.read_text() for file in STORE.glob("*.py"))
    for name in all_queries():
        assert f'"{name}"' in source, name


def test_a_purge_leaves_nothing_of_a_run() -> None:
    """A new table that has rows of runs must be purged too, and whoever purges be allowed to."""
    tables = re.findall(r"create table (\w+) \((.*?)\n\)", schema_sql(), re.DOTALL)
    of_runs = {table for table, columns in tables if re.search(r"^\s+run_id\s", columns, re.MULTILINE)}
    of_runs -= {"eec_open_attempt"}  # its rows end with their attempts, and a closed run has none open
    deleted = set(re.findall(r"delete from (\w+)", all_queries()["drop_closed"].sql.decode()))
    assert deleted == of_runs
    assert deleted | {"eec_payload"} == {table for table, rights in PURGER.items() if "delete" in rights}


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [m.version for m in migrations()] == list(range(1, len(migrations()) + 1))
    assert migrations()[0].label == "0001_pre_initial"


def test_a_statement_with_all_of_its_parts_is_numbered_and_nothing_else() -> None:
    parts = frozenset(re.findall(r"^-- part: (\w+)$", sql("commit").decode(), re.MULTILINE))
    statement, names = numbered("commit", parts)
    named = re.sub(rb"\$(\d+)", lambda found: b"%%(%s)b" % names[int(found[1]) - 1].encode(), statement)
    assert named == re.sub(rb"-- part: .*\n", b"", sql("commit"))
    assert len(set(names)) == len(names)


def test_parts_that_are_not_asked_for_are_left_out() -> None:
    statement, names = numbered("commit", frozenset({"released"}))
    assert b"x.run_id" in statement
    assert b"eec_workflow_run" not in statement
    assert {name[0] for name in names} == {"f", "n", "x"}
