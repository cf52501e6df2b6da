"""``ductor-stream coordinator|worker|serve``: what runs in production."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from prometheus_client import CollectorRegistry

from ductor_stream.app import App
from ductor_stream.cli.connection import settings_for
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.running import run_process
from ductor_stream.config import Settings
from ductor_stream.errors import InvalidConfig
from ductor_stream.telemetry.logs import FORMATS
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Service

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_CONCURRENCY = 20
"""Attempts at a time and queue: steps mostly wait for others, and 20 threads cost nothing while they do."""


def process_options(command: Command) -> Command:
    """What every long-running process can be told; what is not given comes from the configuration."""
    for option in (
        click.argument("apps", nargs=-1, required=True, metavar="MODULE:APP..."),
        click.option("--kafka", "kafka_bootstrap", metavar="HOST:PORT", help="Else DUCTOR_KAFKA_BOOTSTRAP."),
        click.option("--health-port", type=click.IntRange(0, 65535), help="Health and metrics; 0 takes a free port."),
        click.option("--health-host", help="Where health and metrics are served; else 127.0.0.1."),
        click.option("--log-format", type=click.Choice(FORMATS), help="Else DUCTOR_LOG_FORMAT, else console."),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
    ):
        command = option(command)
    return command


_database_option = click.option("--database", "database_url", metavar="URL", help="Else DUCTOR_DATABASE_URL.")
_queue_option = click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; repeatable.")
_concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    help="Attempts at a time, for each queue.",
)


@click.command()
@process_options
@_database_option
def coordinator(apps: Sequence[str], **given: Any) -> None:
    """Own runs and decide what they do next. Start as many as you like: they share the partitions."""
    loaded, settings = _prepare(apps, given)
    settings.need_database()
    from ductor_stream.wiring.coordinators import coordinator_service

    def build(registry: CollectorRegistry) -> list[Service]:
        return [coordinator_service(app, settings, _metrics(registry, app, settings)) for app in loaded]

    run_process(settings, build)


@click.command()
@process_options
@_queue_option
@_concurrency_option
def worker(apps: Sequence[str], queues: Sequence[str], concurrency: int, **given: Any) -> None:
    """Run steps. Needs Kafka and nothing else."""
    loaded, settings = _prepare(apps, given)
    chosen = _queues_of(loaded, queues)
    from ductor_stream.wiring.workers import worker_service

    def build(registry: CollectorRegistry) -> list[Service]:
        return [
            worker_service(app, settings, _metrics(registry, app, settings), chosen[app.namespace], concurrency)
            for app in loaded
            if chosen[app.namespace]
        ]

    run_process(settings, build)


@click.command()
@process_options
@_database_option
@_queue_option
@_concurrency_option
def serve(apps: Sequence[str], queues: Sequence[str], concurrency: int, **given: Any) -> None:
    """Coordinator and worker in one process: steps are handed over in memory where a slot is free (SyncMatch)."""
    loaded, settings = _prepare(apps, given)
    settings.need_database()
    chosen = _queues_of(loaded, queues)
    from ductor_stream.wiring.serving import serve_build

    run_process(settings, serve_build(loaded, settings, chosen, concurrency))


def _prepare(apps: Sequence[str], given: dict[str, Any]) -> tuple[list[App], Settings]:
    settings = settings_for(of_app=True, **given)
    settings.need_kafka()
    loaded = [load_app(spec) for spec in apps]
    if len(loaded) > 1 and settings.namespace is not None:
        raise InvalidConfig("DUCTOR_NAMESPACE gives several apps one name: unset it, or run them in processes apart")
    if len({app.namespace for app in loaded}) < len(loaded):
        raise InvalidConfig("two of the apps have the same name: include one in the other")
    return loaded, settings


def _metrics(registry: CollectorRegistry, app: App, settings: Settings) -> Metrics:
    return Metrics(registry, app=settings.topics(app.namespace).namespace)


def _queues_of(apps: Sequence[App], wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What each app runs here of the queues that are wanted (all of its own, where none are named), by its name.

    Raises InvalidConfig for a queue that no app has: whoever started this process counts on it.
    """
    own = {app.namespace: app.queues(external=False) for app in apps}
    if not wanted:
        if idle := [name for name, queues in own.items() if not queues]:
            raise InvalidConfig(f"app {idle[0]} declares no step that could run here")
        return own
    known = sorted({queue for queues in own.values() for queue in queues})
    if missing := [queue for queue in dict.fromkeys(wanted) if queue not in known]:
        subject, has = (f"app {apps[0].namespace} has", "it has") if len(apps) == 1 else ("the apps have", "they have")
        near = difflib.get_close_matches(missing[0], known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidConfig(
            f"{subject} no step on queue {', '.join(missing)}; {has} {', '.join(known) or 'none at all'}{hint}"
        )
    return {name: tuple(queue for queue in dict.fromkeys(wanted) if queue in queues) for name, queues in own.items()}
