"""``ductor-stream dev``: everything on this machine, for a project's folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from prometheus_client import CollectorRegistry

from ductor_stream.app import App
from ductor_stream.cli.connection import DATA_DIR, DevServers, forget, remember
from ductor_stream.cli.dev_beside import reset, status, stop
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import print_fields, print_json
from ductor_stream.cli.processes import DEFAULT_CONCURRENCY
from ductor_stream.cli.running import Stop, connected, run_process
from ductor_stream.cli.starting import interruptible, progress_told
from ductor_stream.config import Settings, load
from ductor_stream.dev.keeper import Keeper
from ductor_stream.dev.stack import DevStack
from ductor_stream.kafka.topics import create_topics
from ductor_stream.kafka.warming import wake_groups
from ductor_stream.store.migrate import migrate
from ductor_stream.wiring.topics import admin_config, planned

_MEMBER = "dev"
BESIDE: Mapping[str, click.Command] = {"status": status, "stop": stop, "reset": reset}
"""What is said to a `dev` that runs; an app whose module is called so is named with its attribute (`status:app`)."""


class DevCommand(click.Command):
    """`dev MODULE:APP`, and `dev status`, `dev stop`, `dev reset` beside it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of this command, or of the one that the first argument names."""
        if args and args[0] in BESIDE:
            return BESIDE[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=DevCommand)
@click.argument("app", metavar="MODULE:APP")
@click.option("--kafka", "kafka_bootstrap", metavar="HOST:PORT", help="Take this Kafka instead of an embedded one.")
@click.option("--database", "database_url", metavar="URL", help="Take this Postgres instead of an embedded one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIR,
    show_default=True,
    help="Where the embedded servers keep their data, and where their ports are remembered.",
)
@click.option("--concurrency", type=click.IntRange(1), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option(
    "--health-port", type=click.IntRange(0, 65535), default=0, help="Health and metrics; 0 takes a free port."
)
@click.option("--reload", "reload_", is_flag=True, help="Start the app anew when a Python file here changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when everything is ready.")
def dev(
    app: str, data_dir: Path, concurrency: int, health_port: int, reload_: bool, as_json: bool, **given: Any
) -> None:
    """Run an app with a real Kafka, Postgres, coordinator and workers. Ctrl-C ends all of them.

    An embedded server that dies meanwhile is started again, on the same data and port.
    Servers that the environment or ductor.toml name are not taken, nor options for them: only those of the options here.
    Beside it, in the same folder: `dev status`, `dev stop`, `dev reset` (deletes its data).
    """
    loaded = load_app(app)
    with interruptible(), servers(data_dir, given) as (settings, stack_dir):
        settings = msgspec.structs.replace(settings, health_port=health_port)
        prepare(loaded, settings)
        running = DevServers(
            kafka_bootstrap=settings.need_kafka(),
            database_url=settings.need_database(),
            data_dir=str(stack_dir),
            namespace=settings.topics(loaded.namespace).namespace,
            pid=os.getpid(),
        )

        def tell() -> None:
            _tell(running, app, as_json)

        try:
            _run(app, loaded, settings, concurrency, stack_dir if reload_ else None, tell)
        finally:
            forget(stack_dir)


@contextmanager
def servers(data_dir: Path, given: dict[str, Any]) -> Iterator[tuple[Settings, Path]]:
    """The servers to use: those that are named, embedded ones for the rest, which are kept up.

    Raises DevStackError (at the end too, if one could not be kept up), InvalidConfig.
    """
    stack = DevStack(data_dir, kafka=given["kafka_bootstrap"] is None, postgres=given["database_url"] is None)
    with progress_told(_say):
        stack.start()
    keeper = Keeper(stack, _say, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        if stack.kafka is not None:
            # One process uses these servers (they are locked), and it always is the same member of its groups: killed
            # and started again, it has its partitions at once and does not wait for its own session to end.
            given |= {"kafka_bootstrap": stack.kafka.bootstrap, "kafka_protocol": "classic"}
            given["kafka_instance_id"] = _MEMBER
        if stack.postgres is not None:
            given["database_url"] = stack.postgres.url
        yield load(**given).embedded(kafka=stack.kafka is not None, postgres=stack.postgres is not None), stack.data_dir
    finally:
        keeper.close()
        stack.stop()
    if keeper.error is not None:
        raise keeper.error


def _say(line: str) -> None:
    click.echo(f"dev: {line}", err=True)


def prepare(app: App, settings: Settings) -> None:
    """Tables and topics, where they are missing. Raises StoreUnavailable, LogUnavailable, SchemaMismatch."""
    stop = Stop()  # never set: until the app runs, a signal ends everything at once
    connected(lambda: migrate(settings.need_database()), stop)
    connected(lambda: create_topics(admin_config(app, settings), planned(app, settings)), stop)
    stop.close()
    topics = settings.topics(app.namespace)
    groups = [topics.coordinator_group, *map(topics.worker_group, app.queues(external=False))]
    wake_groups(admin_config(app, settings), groups)


def _run(
    spec: str, app: App, settings: Settings, concurrency: int, reload_in: Path | None, ready: Callable[[], None]
) -> None:
    if reload_in is not None:
        from ductor_stream.cli.reloading import run_reloading

        run_reloading(spec, settings, concurrency, reload_in, ready)
        return
    from ductor_stream.wiring.serving import serve_build

    namespace = settings.topics(app.namespace).namespace

    def owns(registry: CollectorRegistry) -> bool:
        """The only coordinator there is will own all partitions: from then on a start is taken at once."""
        if not registry.get_sample_value("ductor_partitions_owned", {"app": namespace}):
            return False
        ready()
        return True

    queues = {app.namespace: app.queues(external=False)}
    run_process(settings, serve_build([app], settings, queues, concurrency), owns)


def _tell(running: DevServers, spec: str, as_json: bool) -> None:
    remember(running)
    if as_json:
        print_json(running)
        return
    click.secho(f"{spec} is running", bold=True)
    print_fields(msgspec.structs.asdict(running))
    click.echo("In another terminal, in this folder: ductor-stream start WORKFLOW RUN_ID --input JSON; runs list")
