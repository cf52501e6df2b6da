"""Postgres 14 is the oldest that we promise, and none stands on the machines of the tests: no word of ours is newer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ductor_stream

PACKAGE = Path(ductor_stream.__file__).parent

NEWER = {
    15: r"""
        merge \s+ into | nulls \s+ (not \s+)? distinct | security_invoker | unlogged \s+ sequence | set \s+ access \s+ method
        | regexp_(count|instr|like|substr) | parameter \s+ privilege | grant \s+ set \s+ on \s+ parameter
        | has_parameter_privilege | log_startup_progress_interval | pg_ident_file_mappings | allow_in_place_tablespaces
        | on \s+ delete \s+ set \s+ (null|default) \s* \( | for \s+ tables \s+ in \s+ schema | row_filter""",
    16: r"""
        any_value | is \s+ (not \s+)? json | json_(object|array)agg | json_array \s* \( | json_object \s* \( [^)]* : [^:]
        | random_normal | array_(sample|shuffle) | date_(add|subtract) | pg_input_(is_valid|error_info) | system_user
        | pg_stat_io | erfc? \s* \( | 0[xob][0-9a-f]+ | \d+_\d+ | load_balance_hosts | require_auth | sslcertmode
        | vacuum_buffer_usage_limit | with \s+ inherit | (null|absent) \s+ on \s+ null""",
    17: r"""
        json_(table|exists|query|value|scalar|serialize) | merge_action | to_(bin|oct) \s* \( | uuid_extract_\w+ | xmltext
        | pg_basetype | random \s* \( [^)]+ \) | unicode_assigned | transaction_timeout | pg_maintain | grant \s+ maintain
        | at \s+ local | when \s+ not \s+ matched \s+ by | on_error \s | pg_wait_events | event_triggers | sync_replication_slots""",
    18: r"""
        uuidv[47] | array_(sort|reverse) | casefold | crc32c? | virtual \b | without \s+ overlaps | with \s+ overlaps
        | returning \s+ (with \s* \(|old\b|new\b) | not \s+ enforced | period \s+ \w+ \s+ (?=\)|,) | idle_replication_slot_timeout
        | pg_get_acl | pg_aios | io_method | jsonb?_strip_nulls \s* \( [^)]+ ,""",
}
"""What each release has brought, of what a store could use (their release notes). Words of comments are not looked at."""


def newer(statement: str) -> list[str]:
    """The words in a statement that 14 does not know, with the release that brought them."""
    bare = re.sub(r"--.*|/\*.*?\*/", "", statement).lower()
    found = []
    for release, pattern in NEWER.items():
        hits = re.finditer(rf"(?<![\w.$:]) (?:{pattern})", bare, re.VERBOSE)
        found += [f"{release}: {' '.join(hit[0].split())}" for hit in hits]
    return found


def statements() -> Iterator[tuple[str, str]]:
    """Each file of SQL, and each text in the store's code that is no docstring."""
    for path in PACKAGE.rglob("*.sql"):
        yield path.name, path.read_text("utf-8")
    for path in (PACKAGE / "store").glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in ast.walk(tree):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in docs:
                yield f"{path.name}:{each.lineno}", each.value


def test_no_statement_has_a_word_that_14_does_not_know() -> None:
    found = dict(statements())
    assert {"schema.sql", "commit.sql", "0001_pre_initial.sql"} <= found.keys()
    assert any(
        text.startswith("insert into eec_schema ") for name, text in found.items() if name.startswith("migrate.py:")
    )
    assert {name: words for name, text in found.items() if (words := newer(text))} == {}


@pytest.mark.parametrize(
    ("statement", "release"),
    [
        ("MERGE INTO eec_counter c USING x ON true WHEN MATCHED THEN DO NOTHING", 15),
        ("create unique index i on t (a) nulls not distinct", 15),
        ("select any_value(a) from t", 16),
        ("select json_arrayagg(a) from t", 16),
        ("select 1_000", 16),
        ("select * from json_table(j, '$' columns (a int))", 17),
        ("merge into t using s on true when matched then delete returning merge_action()", 17),
        ("select uuidv7()", 18),
        ("update t set a = 1 returning old.a", 18),
        ("alter table t add b int generated always as (a * 2) virtual", 18),
    ],
)
def test_what_is_newer_is_found(statement: str, release: int) -> None:
    assert any(word.startswith(f"{release}: ") for word in newer(statement)), statement


def test_what_14_knows_is_no_find() -> None:
    sound = """
        insert into t (a) values ($1) on conflict (a) do update set b = excluded.b returning a -- merge into t
        ; select date_trunc('day', at), jsonb_object_agg(a, b), random(), json_build_object('a', 1), t.json_value from t
        ; select 'a'::regclass, gen_random_uuid(), a is distinct from b, row_number() over (partition by a) from t_1
    """
    assert newer(sound) == []
