"""``ductor-stream purge``: deletes runs that ended long ago, and what is kept for no run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import click
import msgspec
from rich.console import Console

from ductor_stream.cli.connection import connection_options, namespace_of, settings_for
from ductor_stream.cli.failures import Refused
from ductor_stream.cli.moments import in_ms, moment
from ductor_stream.cli.output import answer, print_table
from ductor_stream.kafka.retention import FOREVER, letters_kept, retentions
from ductor_stream.kafka.topics import AdminConfig
from ductor_stream.store.purge import Purged, Purger


@click.command()
@click.option(
    "--closed-before", required=True, type=moment, metavar="30d|12h|DATE", help="How long ago, or when, they ended."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--ignore-retention", is_flag=True, help="Also runs whose requests a topic may still hold. See docs/operations.md."
)
@connection_options
def purge(
    closed_before: timedelta | datetime, dry_run: bool, ignore_retention: bool, as_json: bool, **given: Any
) -> None:
    """Delete runs that ended before a moment, with their history. Coordinators may be at work meanwhile.

    Refused (exit code 4) for a moment that is nearer than the longest retention of the inbound and task topics: while
    a topic holds the request for a run, only the run's row keeps it from being applied once more. It may be ended and
    called again at any time.

    Deleted too are ids of messages that waited, until before that moment, for a run that never came, and values of dead
    letters that were too large for their records, once the topic no longer keeps the letters.
    """
    settings = settings_for(**given)
    topics = settings.topics(namespace_of(settings))
    with closing(Purger(settings.need_database(), topics.namespace)) as purger:
        now = purger.now()
        before = in_ms(closed_before, now)
        letters_before = before
        if not ignore_retention:
            admin = AdminConfig(bootstrap=settings.need_kafka(), topics=topics, options=settings.kafka)
            _check_retention(admin, now - before)
            kept = letters_kept(admin)
            letters_before = 0 if kept == FOREVER else min(before, now - kept)
        told = {"namespace": topics.namespace, "closed_before": datetime.fromtimestamp(before / 1000, UTC)}
        if dry_run:
            _tell(told, purger.count(before), purger.count_leftovers(before, letters_before), as_json)
        else:
            _delete(told, purger, (before, letters_before), as_json)


def _check_retention(admin: AdminConfig, age_ms: int) -> None:
    """Raises Refused where a topic keeps records for longer than that; LogUnavailable, TopicsNotReady."""
    kept = retentions(admin)
    forever = [name for name, keep in kept.items() if keep == FOREVER]
    longest = max(kept, key=lambda name: kept[name])
    if not forever and kept[longest] <= age_ms:
        return
    whose = f"{forever[0]} for ever" if forever else f"{longest} for {timedelta(milliseconds=kept[longest])}"
    remedy = "give an earlier moment" if not forever else "set its retention.ms"
    raise Refused(
        f"Kafka keeps records of {whose}, so that requests for such runs, or results, may still come: {remedy}, or say "
        "--ignore-retention where ids of runs never come again"
    )


def _tell(told: dict[str, Any], found: Sequence[tuple[str, str, int]], over: tuple[int, int], as_json: bool) -> None:
    rows = [{"workflow": workflow, "status": status, "runs": runs} for workflow, status, runs in found]
    messages, payloads = over

    def show(value: dict[str, Any]) -> None:
        if rows:
            print_table(("workflow", "status", "runs"), rows)
        click.echo(
            f"{value['runs']:,} runs would be deleted; and of no run, {messages:,} ids of messages and {payloads:,} values "
            "of dead letters"
        )

    runs = sum(row[2] for row in found)
    leftovers = {"messages_of_no_run": messages, "payloads": payloads}
    answer({**told, "dry_run": True, "runs": runs, "by": rows, **leftovers}, as_json, show)


def _delete(told: dict[str, Any], purger: Purger, moments: tuple[int, int], as_json: bool) -> None:
    total = Purged()
    with Console(stderr=True).status("deleting") as status:
        for batch in chain(purger.batches(moments[0]), purger.leftover_batches(*moments)):
            total += batch
            status.update(f"deleted {total.runs:,} runs, {total.transitions:,} transitions")

    def show(_: object) -> None:
        click.echo(
            f"deleted {total.runs:,} runs, with {total.transitions:,} transitions, {total.attempts:,} lines about "
            f"attempts, {total.messages:,} ids of messages and {total.payloads:,} values of dead letters"
        )

    answer({**told, "dry_run": False, **msgspec.structs.asdict(total)}, as_json, show)
