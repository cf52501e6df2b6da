"""``ductor-stream dead-letters list|replay``: what could not be applied, and sending it once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ductor_stream.cli.connection import connection_options, namespace_of, settings_for
from ductor_stream.cli.failures import NotFound
from ductor_stream.cli.letters import Letter, again, read_letters
from ductor_stream.cli.output import answer, print_table
from ductor_stream.config import Settings
from ductor_stream.errors import DuctorError, TransientError
from ductor_stream.wiring.clients import open_log

_CLOSE_WITHIN_S = 30.0


@click.group(name="dead-letters")
def dead_letters() -> None:
    """Records that could not be applied: see them, send them again."""


@dead_letters.command(name="list")
@click.option("--reason", help="Only letters with this reason.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The newest so many.")
@connection_options
def list_(reason: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """Dead letters, oldest first."""
    settings = settings_for(**given)
    found = [letter for letter in _letters(settings) if reason in (None, letter.reason)][-limit:]
    columns = ("id", "at", "reason", "error", "source_topic", "source", "key", "size_bytes")
    answer([letter.shown() for letter in found], as_json, lambda rows: print_table(columns, rows))


@dead_letters.command()
@click.argument("ids", nargs=-1, metavar="[PARTITION:OFFSET...]")
@click.option("--reason", help="All letters with this reason.")
@click.option("--all", "every", is_flag=True, help="All letters.")
@connection_options
def replay(ids: Sequence[str], reason: str | None, every: bool, as_json: bool, **given: Any) -> None:
    """Send letters again to the topics they came from, byte for byte; what had expired, under another id.

    Starts, signals and results that were applied meanwhile are recognised by their ids and change nothing. What became of
    each letter is told in any case; the exit code is not 0 where one could not be sent.
    """
    if sum((bool(ids), reason is not None, every)) != 1:
        raise click.UsageError("name letters by their ids, or give --reason, or --all")
    settings = settings_for(**given)
    chosen = [letter for letter in _letters(settings) if every or letter.id in ids or letter.reason == reason]
    if missing := set(ids) - {letter.id for letter in chosen}:
        raise NotFound(f"there is no dead letter {', '.join(sorted(missing))}")
    outcome, failure = _send(settings, chosen)

    def show(value: dict[str, Any]) -> None:
        click.echo(f"sent {len(value['sent'])} again")
        for each in value["skipped"]:
            click.echo(f"skipped: {each['error']}")
        for each in value["failed"]:
            click.echo(f"not sent: letter {each['id']}: {each['error']}")

    answer(outcome, as_json, show)
    if failure is not None:
        raise failure


def _letters(settings: Settings) -> list[Letter]:
    return list(read_letters(settings, settings.topics(namespace_of(settings))))


def _send(settings: Settings, letters: Sequence[Letter]) -> tuple[dict[str, Any], DuctorError | None]:
    """Send each and wait for the broker: what became of each letter, and the error to end with, if any.

    What cannot be sent again, ever (without a key, say), is skipped. How long the broker may take is the driver's affair:
    it answers for each record (``message.timeout.ms``). Raises LogUnavailable, TopicsNotReady.
    """
    sent: list[str] = []
    skipped: list[dict[str, str]] = []
    failed: list[dict[str, str]] = []
    failures: list[DuctorError] = []

    def note(letter: Letter, error: DuctorError) -> None:
        failed.append({"id": letter.id, "error": " ".join(str(error).split())})
        failures.append(error)

    log = open_log(settings.topics(namespace_of(settings)), settings, lifecycle=False)
    try:
        waiting = []
        for letter in letters:
            try:
                waiting.append((letter, log.send(again(letter, settings))))
            except NotFound as error:
                skipped.append({"id": letter.id, "error": str(error)})
            except DuctorError as error:
                note(letter, error)
        for letter, future in waiting:
            try:
                future.result()
                sent.append(letter.id)
            except DuctorError as error:
                note(letter, error)
    finally:
        log.close(_CLOSE_WITHIN_S)
    return {"sent": sent, "skipped": skipped, "failed": failed}, _worst(failures)


def _worst(failures: Sequence[DuctorError]) -> DuctorError | None:
    """What the command ends with: where trying again may help, that."""
    passing = [error for error in failures if isinstance(error, TransientError)]
    return next(iter([*passing, *failures]), None)
