"""``ductor-stream topics create|check``."""

from __future__ import annotations

from typing import Any

import click

from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.failures import REFUSED, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer
from ductor_stream.kafka.topics import (
    Problem,
    check_topics,
    create_topics,
)
from ductor_stream.wiring.topics import admin_config, planned, recorded_partitions


@click.group()
def topics() -> None:
    """Create an app's Kafka topics, or check that they fit."""


@topics.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--partitions", type=click.IntRange(1), help="Of inbound and task topics.")
@click.option("--replicas", type=click.IntRange(1), help="Else the broker's default.")
@connection_options
def create(app: str, as_json: bool, **given: Any) -> None:
    """Create the topics that are missing; what exists is left as it is."""
    loaded, settings = load_app(app), settings_for(**given)
    wanted = planned(loaded, settings)
    created = create_topics(admin_config(loaded, settings), wanted)

    def show(value: dict[str, Any]) -> None:
        for name in created:
            click.echo(f"created {name}")
        if not created:
            click.echo("all topics exist")

    answer({"created": created, "existing": sorted({each.name for each in wanted} - set(created))}, as_json, show)


@topics.command()
@click.argument("app", metavar="MODULE:APP")
@connection_options
def check(app: str, as_json: bool, **given: Any) -> None:
    """Say what is wrong with an app's topics. Exit code 4 when a coordinator would refuse them."""
    loaded, settings = load_app(app), settings_for(**given)
    wanted = planned(loaded, settings)
    found = check_topics(admin_config(loaded, settings), wanted, recorded=recorded_partitions(loaded, settings))

    def show(value: dict[str, Any]) -> None:
        for problem in found:
            _show_problem(problem)
        if not found:
            click.echo(f"{len(wanted)} topics are as they should be")

    problems = [{"topic": each.topic, "text": each.text, "fatal": each.fatal} for each in found]
    answer({"ok": not found, "topics": [each.name for each in wanted], "problems": problems}, as_json, show)
    if any(problem.fatal for problem in found):
        end(REFUSED)


def _show_problem(problem: Problem) -> None:
    click.secho("wrong: " if problem.fatal else "note: ", fg="red" if problem.fatal else "yellow", nl=False)
    click.echo(problem.text)
