"""The page ``docs/cli.md``, out of what the commands say of themselves: ``python -m ductor_stream.cli.reference``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from ductor_stream.cli.dev import BESIDE
from ductor_stream.cli.main import cli

_HEAD = """\
# Commands

<!-- Written by `python -m ductor_stream.cli.reference > docs/cli.md`: change the commands' own help. -->

Every command has `--help`. Those that answer have `--json`: the same as the table, for programs, on one line of
standard output; an error is then one line of JSON on standard error. Exit codes:

| | |
|---|---|
| 0 | done |
| 1 | failed: the run did not complete, the check found something |
| 2 | wrong usage or configuration |
| 3 | not found |
| 4 | refused: the run is closed, the topics do not fit, the schema is of another release |
| 5 | Kafka or Postgres cannot be reached |

Kafka and Postgres are found by the options, else by the [configuration](operations.md#configuration), else by a
`ductor-stream dev` that runs in this folder.
"""


def reference() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="ductor-stream")
    sections = [
        section for name in cli.list_commands(context) for section in _sections(_command(name, context), name, context)
    ]
    return "\n".join([_HEAD, *sections])


def _command(name: str, context: click.Context) -> click.Command:
    found = cli.get_command(context, name)
    assert found is not None
    return found


def _sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield _section(command, context)
    for inner, each in (command.commands if isinstance(command, click.Group) else {}).items():
        yield _section(each, click.Context(each, info_name=inner, parent=context))
    for beside, each in (BESIDE if name == "dev" else {}).items():
        yield _section(each, click.Context(each, info_name=f"{name} {beside}", parent=parent))


def _section(command: click.Command, context: click.Context) -> str:
    lines = [f"## `{context.command_path}`", "", inspect.cleandoc(command.help or "").replace("\b\n", ""), ""]
    if isinstance(command, click.Group):
        return "\n".join(lines)
    pieces = " ".join(command.collect_usage_pieces(context))
    lines += ["```", f"{context.command_path} {pieces}", "```", ""]
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [record for each in options if (record := each.get_help_record(context)) is not None]
    if records:
        lines += ["| option | |", "|---|---|"]
        lines += [f"| `{_cell(option)}` | {_cell(text)} |" for option, text in records]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    click.echo(reference(), nl=False)
