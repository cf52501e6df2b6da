"""What each kind of process must be allowed to do in Postgres, and nothing beyond.

The *owner* of the tables runs migrations, *coordinators* change rows, *readers* (the ``runs`` commands, clients that
wait for results) only look, and who *purges* deletes runs that have ended. Workers have no business in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from ductor_stream.errors import SchemaMismatch, StoreUnavailable
from ductor_stream.store.connection import StoreOptions, line

COORDINATOR: Mapping[str, tuple[str, ...]] = {
    "eec_schema": ("select",),
    "eec_namespace": ("select", "insert"),
    "eec_partition": ("select", "insert", "update"),
    "eec_workflow_definition": ("insert",),
    "eec_workflow_run": ("select", "insert", "update"),
    "eec_workflow_transition": ("select", "insert", "delete"),
    "eec_workflow_summary": ("select", "insert", "update"),
    "eec_workflow_step_attempt": ("select", "insert", "delete"),
    "eec_workflow_signal": ("select", "insert", "update"),
    "eec_open_attempt": ("select", "insert", "update", "delete"),
    "eec_outbox": ("select", "insert", "delete"),
    "eec_inbox": ("select", "insert", "delete", "update"),
    "eec_payload": ("insert",),
    "eec_counter": ("select", "insert", "update"),
}
"""By table. History is added to, and folded into its summary: no update of transitions and attempts."""

READER: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    (
        "eec_namespace",
        "eec_partition",
        "eec_workflow_definition",
        "eec_workflow_run",
        "eec_workflow_transition",
        "eec_workflow_summary",
        "eec_workflow_step_attempt",
        "eec_attempt",
        "eec_workflow_signal",
        "eec_open_attempt",
        "eec_inbox",
        "eec_payload",
        "eec_counter",
    ),
    ("select",),
)
"""By table or view."""

PURGER: Mapping[str, tuple[str, ...]] = {
    "eec_namespace": ("select",),
    # Postgres lets only who may change something of a row hold it.
    "eec_workflow_run": ("select", "delete", "update (updated_at)"),
    "eec_workflow_transition": ("select", "delete"),
    "eec_workflow_step_attempt": ("select", "delete"),
    "eec_workflow_summary": ("select", "delete"),
    "eec_workflow_signal": ("select", "delete"),
    "eec_payload": ("select", "delete"),
    "eec_counter": ("select", "insert", "update"),
}
"""By table."""

ROLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"coordinator": COORDINATOR, "reader": READER, "purger": PURGER}


def _rights_of(kinds: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Of a role that is several of them, by table."""
    found: dict[str, tuple[str, ...]] = {}
    for kind in kinds:
        for table, rights in ROLES[kind].items():
            found[table] = tuple(dict.fromkeys((*found.get(table, ()), *rights)))
    return found


def statements(names: Mapping[str, str], schema: str = "public") -> list[str]:
    """SQL for the owner of the tables that leaves each role with exactly this. ``names`` are roles by ``ROLES``' kinds.

    May be repeated; to be run after each migration, since that may bring new tables. One transaction, please: what is
    revoked is granted again a moment later.
    """
    composed: list[Composed] = []
    for name in dict.fromkeys(names.values()):
        to = {"role": Identifier(name), "schema": Identifier(schema)}
        composed.append(SQL("grant usage on schema {schema} to {role}").format(**to))
        for table, rights in _rights_of(kind for kind, role in names.items() if role == name).items():
            on = to | {"table": Identifier(table)}
            composed.append(SQL("revoke all on {schema}.{table} from {role}").format(**on))
            granted = SQL(", ").join(SQL(right) for right in rights)
            composed.append(SQL("grant {rights} on {schema}.{table} to {role}").format(**on, rights=granted))
    return [each.as_string(None) for each in composed]


def apply_grants(dsn: str, names: Mapping[str, str], schema: str = "public") -> None:
    """Run these statements in one transaction. Raises StoreUnavailable, SchemaMismatch (no such role or table)."""
    timeout_s = StoreOptions().connect_timeout_ms // 1000
    try:
        with psycopg.connect(dsn, application_name="ductor-stream grants", connect_timeout=timeout_s) as connection:
            for statement in statements(names, schema):
                connection.execute(statement.encode())
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"Postgres cannot be reached: {line(error)}") from error
    except psycopg.Error as error:
        raise SchemaMismatch(f"rights cannot be granted: {line(error)}") from error
