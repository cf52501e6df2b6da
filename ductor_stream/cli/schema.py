"""``ductor-stream migrate``."""

from __future__ import annotations

from typing import Any

import click

from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.output import answer
from ductor_stream.store.migrate import Phase
from ductor_stream.store.migrate import migrate as apply_migrations


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be applied.")
@click.option(
    "--phase",
    type=click.Choice(["all", "pre", "post"]),
    default="all",
    help="pre: before the new release is deployed; post: after the old one is gone.",
)
@connection_options
def migrate(dry_run: bool, phase: Phase, as_json: bool, **connection: Any) -> None:
    """Bring the tables in Postgres up to this release."""
    done = apply_migrations(settings_for(**connection).need_database(), phase, dry_run)

    def show(value: dict[str, Any]) -> None:
        if not done:
            click.echo("the schema is up to date")
        for label in done:
            click.echo(f"{'would apply' if dry_run else 'applied'} {label}")

    answer({"dry_run": dry_run, "migrations": done}, as_json, show)
