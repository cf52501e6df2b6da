"""``ductor-stream demo``: orders run to completion while processes are killed under them."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from ductor_stream.cli.failures import FAILED, INTERRUPTED, OK, end
from ductor_stream.cli.output import console, print_json
from ductor_stream.cli.running import stop_on_signals

DEFAULT_ORDERS = 500


@click.command()
@click.option("--orders", type=click.IntRange(10, 100_000), default=DEFAULT_ORDERS, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".ductor/demo"),
    show_default=True,
    help="Where Kafka and Postgres keep their data.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and progress on standard error.")
def demo(orders: int, data_dir: Path, as_json: bool) -> None:
    """Run orders on a real Kafka and Postgres, and kill -9 a coordinator and a worker midway.

    Ends with two checks computed from Postgres: no run lost, no run advanced twice. Exit code 1 if one fails.
    """
    from ductor_stream.cli.demo_screen import Screen, print_outcome
    from ductor_stream.cli.demo_story import Interrupted, Story, servers

    screen = Screen(Console(stderr=True, highlight=False) if as_json else console())
    with stop_on_signals() as stop:
        try:
            screen.tell("starting Kafka and Postgres")
            with servers(data_dir, screen.tell) as stack:
                screen.tell(f"Kafka and Postgres are ready in {stack.data_dir}")
                outcome = Story(stack, orders, screen, stop).play()
        except Interrupted:
            screen.end()
            screen.tell("stopped; nothing is left running")
            end(INTERRUPTED)
    if as_json:
        print_json(outcome.values())
    else:
        print_outcome(console(), outcome)
    end(OK if outcome.good else FAILED)
