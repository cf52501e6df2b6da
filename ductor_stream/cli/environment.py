"""``ductor-stream env``: the variables with which other programs find the servers of a running ``dev``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ductor_stream.cli.connection import DATA_DIR, find_dev, why_no_dev
from ductor_stream.cli.failures import NotFound
from ductor_stream.cli.output import answer


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIR,
    show_default=True,
    help="The data directory of the `dev` that is meant.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def env(data_dir: Path, as_json: bool) -> None:
    """Print exports for a shell, so that other programs here find the `dev` of this folder.

    Use it as `eval "$(ductor-stream env)"`. BROKER is what the examples for kcat use.
    """
    servers = find_dev(data_dir)
    if servers is None:
        raise NotFound(why_no_dev(data_dir))
    variables = {
        "DUCTOR_KAFKA_BOOTSTRAP": servers.kafka_bootstrap,
        "DUCTOR_DATABASE_URL": servers.database_url,
        "DUCTOR_NAMESPACE": servers.namespace,
        "BROKER": servers.kafka_bootstrap,
    }

    def show(_: object) -> None:
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")

    answer(variables, as_json, show)
