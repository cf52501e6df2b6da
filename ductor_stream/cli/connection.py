"""Where a command finds Kafka and Postgres: its options, the configuration, else a ``ductor-stream dev`` that runs here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ductor_stream.config import Settings, load
from ductor_stream.errors import InvalidConfig

DATA_DIR = Path(".ductor")
"""A project's data directory, relative to its folder."""
_FILE = "dev.json"

Command = TypeVar("Command", bound=Callable[..., Any])


class DevServers(msgspec.Struct, frozen=True):
    """What a running ``ductor-stream dev`` serves; kept in its data directory for the commands beside it."""

    kafka_bootstrap: str
    database_url: str
    data_dir: str
    namespace: str
    pid: int


def remember(servers: DevServers) -> None:
    """Let commands in this project's folder find the servers."""
    Path(servers.data_dir, _FILE).write_bytes(msgspec.json.encode(servers) + b"\n")


def forget(data_dir: Path) -> None:
    """The servers are gone."""
    (data_dir / _FILE).unlink(missing_ok=True)


def find_dev(data_dir: Path) -> DevServers | None:
    """The servers of the ``dev`` that runs on this data directory; None if there is none, or it is still starting."""
    try:
        found = msgspec.json.decode((data_dir / _FILE).read_bytes(), type=DevServers)
    except (OSError, msgspec.DecodeError):
        return None
    from ductor_stream.dev.stack import running_pid

    # A `dev` that was killed leaves its file behind; the next one has not written its own yet.
    return found if running_pid(data_dir) == found.pid else None


def settings_for(*, of_app: bool = False, **given: Any) -> Settings:
    """The configuration, completed by a ``dev`` that runs in this folder. Raises InvalidConfig where there is neither.

    What is configured wins: the servers of ``dev`` are taken only where neither Kafka nor Postgres is named.
    ``of_app``: the command is about an app that it loads, which has a namespace of its own; else it is dev's.
    """
    settings = load(**given)
    if settings.kafka_bootstrap or settings.has_database:
        return settings
    servers = find_dev(DATA_DIR)
    if servers is None:
        configure = "or set DUCTOR_KAFKA_BOOTSTRAP and DUCTOR_DATABASE_URL"
        raise InvalidConfig(f"where are Kafka and Postgres? {why_no_dev(DATA_DIR)}, {configure}")
    return settings.beside(servers.kafka_bootstrap, servers.database_url, None if of_app else servers.namespace)


def why_no_dev(data_dir: Path) -> str:
    """Why ``find_dev`` found nothing, with the remedy."""
    from ductor_stream.dev.stack import running_pid

    folder, pid = data_dir.absolute().parent, running_pid(data_dir)
    if pid is not None:
        return f"the `ductor-stream dev` of {folder} (process {pid}) is starting: try again when it says it runs"
    return f"no `ductor-stream dev` runs in {folder}: start one there, or go to the folder where one runs"


def namespace_of(settings: Settings) -> str:
    """The namespace that the command is about. Raises InvalidConfig where none is named."""
    if settings.namespace is None:
        raise InvalidConfig("which app? Give --namespace NAME (the name in App(...)), or set DUCTOR_NAMESPACE")
    return settings.namespace


def connection_options(command: Command) -> Command:
    """The options that every command which talks to a running system has."""
    for option in (
        click.option("--namespace", metavar="NAME", help="The app's name; else DUCTOR_NAMESPACE."),
        click.option("--kafka", "kafka_bootstrap", metavar="HOST:PORT", help="Else DUCTOR_KAFKA_BOOTSTRAP."),
        click.option("--database", "database_url", metavar="URL", help="Else DUCTOR_DATABASE_URL."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        command = option(command)
    return command
