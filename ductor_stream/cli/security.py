"""``ductor-stream acls`` and ``ductor-stream grants``: the least that each process must be allowed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click
import msgspec

from ductor_stream.app import App
from ductor_stream.cli.connection import settings_for
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer
from ductor_stream.config import load
from ductor_stream.kafka.acls import PROCESSES, Acl, acls_for, published_acls
from ductor_stream.store.grants import ROLES, apply_grants, statements
from ductor_stream.work import KafkaStep

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--process", "processes", type=click.Choice(list(PROCESSES)), multiple=True, help="Else all but serve.")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Of a worker that serves only this; repeatable.")
@click.option(
    "--principal",
    default="User:{namespace}-{process}",
    show_default=True,
    help="Who the process is to Kafka.",
)
@click.option("--namespace", metavar="NAME", help="Instead of the app's name.")
@_json_option
def acls(
    app: str, processes: Sequence[str], queues: Sequence[str], principal: str, namespace: str | None, as_json: bool
) -> None:
    """Print the Kafka ACLs that each process needs, as commands of kafka-acls.sh. Changes nothing."""
    loaded, settings = load_app(app), load(namespace=namespace)
    topics = settings.topics(loaded.namespace)
    found = []
    for process in processes or [name for name in PROCESSES if name != "serve"]:
        own = tuple(queues) if queues and process == "worker" else loaded.queues()
        who = principal.replace("{namespace}", topics.namespace).replace("{process}", process)
        needed = acls_for(process, topics, own)
        if process in ("worker", "serve"):
            needed = sorted({*needed, *published_acls(_published(loaded, own))})
        found.append({"process": process, "principal": who, "acls": needed})
    answer(msgspec.to_builtins(found), as_json, lambda _: _show_acls(found))


def _published(app: App, queues: Sequence[str]) -> list[str]:
    """Topics of the Kafka steps on these queues."""
    steps = [step for step in app.steps.values() if isinstance(step, KafkaStep)]
    return [step.record.topic for step in steps if step.definition.options.queue in queues]


def _show_acls(found: Sequence[dict[str, Any]]) -> None:
    click.echo("# BROKER is a broker's address, ADMIN a file with the properties of a client that may change ACLs.")
    for each in found:
        click.echo(f"\n# {each['process']}")
        for command in _commands(each["principal"], each["acls"]):
            click.echo(command)


def _commands(principal: str, found: Sequence[Acl]) -> Iterator[str]:
    """One command for all that has the same operation on resources of one kind."""

    def alike(acl: Acl) -> tuple[str, str, str]:
        return acl.resource, acl.operation, acl.pattern

    start = 'kafka-acls.sh --bootstrap-server "$BROKER" --command-config "$ADMIN" --add --force'
    for (resource, operation, pattern), group in groupby(sorted(found, key=alike), key=alike):
        names = " ".join(f"--{resource} {shlex.quote(acl.name)}" for acl in group)
        how = "" if pattern == "literal" else f" --resource-pattern-type {pattern}"
        yield f"{start} --allow-principal {shlex.quote(principal)} --operation {_operation(operation)}{how} {names}"


def _operation(name: str) -> str:
    """As kafka-acls.sh spells it."""
    return "".join(word.title() for word in name.split("_"))


@click.command()
@click.option("--coordinator", metavar="ROLE", help="The role of coordinators.")
@click.option("--reader", metavar="ROLE", help="The role of who only looks: the runs commands, clients that wait.")
@click.option("--purger", metavar="ROLE", help="The role of `purge`.")
@click.option("--schema", default="public", show_default=True, help="Where the tables are.")
@click.option("--apply", "applied", is_flag=True, help="Grant them too; as the owner of the tables.")
@click.option("--database", "database_url", metavar="URL", help="For --apply; else DUCTOR_DATABASE_URL.")
@_json_option
def grants(schema: str, applied: bool, database_url: str | None, as_json: bool, **given: str | None) -> None:
    """Print the SQL that lets each role do what it must and no more. To be run again after each migration."""
    named = {kind: name for kind, name in given.items() if name}
    names = named or {kind: f"ductor_{kind}" for kind in ROLES}
    found = statements(names, schema)
    if applied:
        apply_grants(settings_for(database_url=database_url).need_database(), names, schema)

    def show(_: Any) -> None:
        if applied:
            click.echo(f"granted to {', '.join(names.values())}")
            return
        click.echo("-- The roles themselves are made by a superuser, once:")
        for name in names.values():
            click.echo(f"--   create role {name} login;")
        click.echo("-- The rest by the owner of the tables, after each `ductor-stream migrate`:")
        click.echo("begin;\n" + "".join(f"{statement};\n" for statement in found) + "commit;")

    answer({"roles": names, "statements": found, "applied": applied}, as_json, show)
