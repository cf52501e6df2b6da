"""``ductor-stream decide``: what a rule says about facts, here and now. Nothing is run, nothing recorded."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ductor_stream.cli.commands import json_argument
from ductor_stream.cli.failures import FAILED, NotFound, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer, print_fields
from ductor_stream.config_rules import nearest
from ductor_stream.errors import TerminalError
from ductor_stream.rules.verdict import Verdict
from ductor_stream.work import Rule


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.argument("rule")
@click.option("--input", "input_", required=True, metavar="JSON|@FILE", help="The facts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decide(app: str, rule: str, input_: str, as_json: bool) -> None:
    """What a decision table or expression decides about facts, and by which rows.

    Exit code 1 when it has no decision: no row hits, rows overlap, an expression fails.
    """
    rules = {name: step for name, step in load_app(app).steps.items() if isinstance(step, Rule)}
    found = rules.get(rule)
    if found is None:
        offer = nearest(rule, rules) or f"; it has {', '.join(sorted(rules)) or 'none'}"
        raise NotFound(f"app {app} has no rule {rule!r}{offer}")
    raw = msgspec.json.encode([json_argument(input_, "--input")])
    try:
        verdict = found.decide(*found.decode_input(raw))
    except TerminalError as error:
        line = f"{error.type}: {error}"
        failed = {"error": {"type": error.type, "message": str(error), "details": error.details}}
        answer(failed, as_json, lambda _: click.echo(line, err=True))
        end(FAILED)
    answer({**msgspec.to_builtins(verdict), "why": verdict.why()}, as_json, lambda _: _show(verdict))


def _show(verdict: Verdict[Any]) -> None:
    click.echo(verdict.why())
    print_fields({"value": msgspec.to_builtins(verdict.value), "digest": verdict.digest})
