"""``ductor-stream config show``: every setting, its value, and where it comes from."""

from __future__ import annotations

from typing import Any

import click

from ductor_stream.cli.connection import DATA_DIR, find_dev
from ductor_stream.cli.output import answer, print_table
from ductor_stream.config import Settings, load
from ductor_stream.config_origins import DEFAULT, origins


@click.group()
def config() -> None:
    """See how this project is configured."""


@config.command()
@click.option("--redact/--no-redact", default=True, show_default=True, help="Print *** in the place of secrets.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(redact: bool, as_json: bool) -> None:
    """Every setting, its value, and where it comes from.

    The first that has a setting wins: options of the command, environment variables (or the file that NAME_FILE
    names), the file that DUCTOR_CONFIG names (else ductor.toml here), the servers of a running `dev`, the default.
    """
    settings = load()
    values, sources = _values(settings, redact), origins()
    servers = None if settings.kafka_bootstrap or settings.has_database else find_dev(DATA_DIR)
    if servers is not None:
        completed = settings.beside(servers.kafka_bootstrap, servers.database_url, servers.namespace)
        before, values = values, _values(completed, redact)
        sources |= {name: "ductor-stream dev" for name, value in values.items() if before.get(name) != value}
    rows = [{"setting": name, "value": value, "source": sources.get(name, DEFAULT)} for name, value in values.items()]
    answer(rows, as_json, lambda _: print_table(("setting", "value", "source"), rows))


def _values(settings: Settings, redact: bool) -> dict[str, Any]:
    """Settings by name; the options of a table each on a line of its own (``kafka.linger.ms``)."""
    plain = settings.redacted() if redact else settings.plain()
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{option}": chosen for option, chosen in value.items()})
        else:
            flat[name] = value
    return flat
