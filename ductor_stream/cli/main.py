"""``ductor-stream``: the group of all commands. A family's module is imported when one of its commands is used."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import click

from ductor_stream.cli.failures import report, reported
from ductor_stream.config_rules import nearest
from ductor_stream.errors import UsageError

# Importing Kafka's and Postgres's drivers takes longer than `--help` should.
_COMMANDS: dict[str, str] = {
    "dev": "dev:dev",
    "demo": "demo:demo",
    "env": "environment:env",
    "check": "check:check",
    "decide": "deciding:decide",
    "replay": "replay:replay",
    "doctor": "doctor:doctor",
    "explain": "explain:explain",
    "config": "configuration:config",
    "serve": "processes:serve",
    "coordinator": "processes:coordinator",
    "worker": "processes:worker",
    "migrate": "schema:migrate",
    "topics": "topics:topics",
    "start": "commands:start",
    "signal": "commands:signal",
    "cancel": "commands:cancel",
    "terminate": "commands:terminate",
    "pause": "commands:pause",
    "resume": "commands:resume",
    "retry": "commands:retry",
    "reset": "commands:reset",
    "runs": "runs:runs",
    "purge": "purge:purge",
    "deployments": "deployments:deployments",
    "dead-letters": "dead_letters:dead_letters",
    "acls": "security:acls",
    "grants": "security:grants",
}


class _Commands(click.Group):
    """Looks commands up by name in the table above; keeps its order in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if ctx.resilient_parsing:
                return None  # a shell asks for completions: whoever typed it is told when the command is run
            ctx.fail(f"there is no command {cmd_name!r}{nearest(cmd_name, _COMMANDS)}")
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"ductor_stream.cli.{module}"), attribute)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("ductor-stream"), prog_name="ductor-stream")
def cli() -> None:
    """Durable workflows on Kafka and Postgres.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 Kafka or Postgres unreachable.
    """


def main(arguments: Sequence[str] | None = None, **more: Any) -> None:
    """Run a command and leave with its exit code. Entry point of the script ``ductor-stream``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What the drivers have to say belongs into the log of a process that keeps one, not before a command's answer.
    logging.getLogger("ductor_stream").addHandler(logging.NullHandler())
    with reported("--json" in given):
        if sys.platform == "win32":
            raise UsageError("the commands run on Linux and macOS: on Windows, use them in WSL2")
        try:
            cli.main(given, prog_name="ductor-stream", standalone_mode=False, **more)
        except click.exceptions.Abort as error:
            raise KeyboardInterrupt from error
        except click.ClickException as error:
            if "--json" in given:
                report(UsageError(error.format_message()), as_json=True)
            else:
                error.show()
            raise SystemExit(error.exit_code) from error
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):  # which click takes for a failure
                raise ended.__context__ from None
            raise


if __name__ == "__main__":
    main()
