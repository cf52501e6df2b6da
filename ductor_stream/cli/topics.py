"""``ductor-stream topics create|check|plan``."""

from __future__ import annotations

from typing import Any

import click

from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.failures import REFUSED, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer, print_table
from ductor_stream.config import Settings, load
from ductor_stream.kafka.topics import Problem, TopicPlan, check_topics, create_topics, least_in_sync
from ductor_stream.ports import INBOUND
from ductor_stream.wiring.topics import admin_config, planned, recorded_partitions

PLANNED_REPLICAS = 3
"""Stated where nothing is configured: the least with which one broker may be away and acknowledged records are kept."""


@click.group()
def topics() -> None:
    """Create an app's Kafka topics, check that they fit, or say what is needed where others make them."""


@topics.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--partitions", type=click.IntRange(1), help="Of inbound and task topics.")
@click.option("--replicas", type=click.IntRange(1), help="Else the broker's default.")
@connection_options
def create(app: str, as_json: bool, **given: Any) -> None:
    """Create the topics that are missing; what exists is left as it is.

    With --replicas (or DUCTOR_REPLICAS) of 3 or more they also get min.insync.replicas=2.
    """
    loaded, settings = load_app(app), settings_for(of_app=True, **given)
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
    loaded, settings = load_app(app), settings_for(of_app=True, **given)
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


@topics.command(name="plan")
@click.argument("app", metavar="MODULE:APP")
@click.option("--namespace", metavar="NAME", help="The app's name; else DUCTOR_NAMESPACE, else its own.")
@click.option(
    "--partitions", type=click.IntRange(1), help="Of inbound and task topics; else DUCTOR_PARTITIONS, else 4."
)
@click.option("--replicas", type=click.IntRange(1), help="Of all topics; else DUCTOR_REPLICAS, else 3.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_(app: str, as_json: bool, **given: Any) -> None:
    """Print the topics that an app needs, for teams whose topics are made by others. Asks no server."""
    loaded, settings = load_app(app), load(**given)
    rows = [_stated(each, settings) for each in planned(loaded, settings)]

    def show(_: object) -> None:
        columns = ("topic", "partitions", "replication_factor", "co_partitioned", *rows[0]["config"])
        print_table(columns, [{**row, **row["config"]} for row in rows])

    answer(rows, as_json, show)


def _stated(topic: TopicPlan, settings: Settings) -> dict[str, Any]:
    """Everything about a topic in numbers, nothing left to a broker's defaults."""
    replicas = settings.replicas or PLANNED_REPLICAS
    return {
        "topic": topic.name,
        "partitions": topic.partitions,
        "replication_factor": replicas,
        "co_partitioned": topic.name.rpartition(".")[2] in INBOUND,
        "config": {**topic.config, "min.insync.replicas": str(least_in_sync(replicas))},
    }


def _show_problem(problem: Problem) -> None:
    click.secho("wrong: " if problem.fatal else "note: ", fg="red" if problem.fatal else "yellow", nl=False)
    click.echo(problem.text)
