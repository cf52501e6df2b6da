"""``ductor-stream check``: reads workflow functions, and what they call, for what breaks determinism."""

from __future__ import annotations

import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import click
import msgspec

from ductor_stream.app import App
from ductor_stream.cli.declared_work import (
    DeclaredConnector,
    DeclaredRule,
    alike_rows,
    connectors_of,
    rules_of,
)
from ductor_stream.cli.determinism import Finding, SourceModule, read_function, run_parameter
from ductor_stream.cli.failures import FAILED, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer

_NOT_USERS = tuple(
    {str(Path(__file__).parents[1]), *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))}
)
"""Where Python, installed packages and this one are: code there is not read."""


class Reviewed(msgspec.Struct, frozen=True):
    """What reading an app has found. ``functions`` counts workflows and what they call; ``ignored`` silenced lines."""

    findings: list[Finding]
    workflows: int
    functions: int
    ignored: int
    unread: list[str]
    """Workflows whose source cannot be read (typed into a shell, say)."""
    rules: list[DeclaredRule] = []
    connectors: list[DeclaredConnector] = []


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(app: str, as_json: bool) -> None:
    """Find by reading what breaks determinism in an app's workflows. Exit code 1 when something is found.

    Read are workflow functions and the plain functions of yours that they call. The comment `# ductor: ignore`
    silences a line. Rules and connectors are listed, with the secrets that workers need; rows of a decision table that
    cannot be told apart are found.
    """
    found = review(load_app(app))
    value = {"ok": not found.findings, **msgspec.to_builtins(found)}
    answer(value, as_json, lambda _: _show(found))
    if found.findings:
        end(FAILED)


def _show(found: Reviewed) -> None:
    for each in found.findings:
        click.secho(f"{each.file}:{each.line}:{each.column}", bold=True, nl=False)
        click.echo(f": {each.found} in {each.function}: {each.why} [{each.code}]")
        click.echo(f"    {each.remedy}")
    for name in found.unread:
        click.echo(f"not read: {name} has no source file")
    silenced = f", {found.ignored} silenced" if found.ignored else ""
    for rule in found.rules:
        click.echo(f"rule {rule.name} version {rule.version} ({rule.policy}, digest {rule.digest})")
    for connector in found.connectors:
        needs = f", needs the secrets {', '.join(connector.secrets)}" if connector.secrets else ""
        click.echo(f"connector {connector.name} on queue {connector.queue}: {connector.target}{needs}")
    told = f"{len(found.findings)} found" if found.findings else "nothing found"
    click.echo(f"{told} in {found.workflows} workflow(s), {found.functions} function(s){silenced}")


def review(app: App) -> Reviewed:
    """Read every workflow of an app, and the user's own plain functions that it calls, directly or not."""
    waiting: list[tuple[Any, bool]] = [(each.definition.function, True) for each in app.workflows.values()]
    seen, findings, ignored, unread = set[Any](), set(alike_rows(app)), 0, list[str]()
    modules: dict[str, SourceModule | None] = {}
    while waiting:
        given, is_workflow = waiting.pop()
        function = inspect.unwrap(given)
        if function in seen:
            continue
        seen.add(function)
        module = _module(function, modules)
        node = module.function_at(function.__code__.co_firstlineno) if module is not None else None
        if module is None or node is None:
            unread += [function.__qualname__] if is_workflow else []
            continue
        reading = read_function(module, node, run_parameter(node, workflow=is_workflow))
        findings.update(reading.findings)
        ignored += reading.ignored
        waiting += [(other, False) for other in _followed(function, reading.used)]
    counts = (len(app.workflows), len(seen), ignored)
    return Reviewed(sorted(findings), *counts, sorted(unread), rules_of(app), connectors_of(app))


def _module(function: FunctionType, modules: dict[str, SourceModule | None]) -> SourceModule | None:
    file = function.__code__.co_filename
    if file not in modules:
        try:
            modules[file] = SourceModule(Path(file).read_text(encoding="utf-8"), _shown(file))
        except (OSError, UnicodeDecodeError, SyntaxError):
            modules[file] = None
    return modules[file]


def _followed(function: FunctionType, used: set[str]) -> Iterator[FunctionType]:
    """The user's own plain functions among what a function uses."""
    for name in sorted(used):
        found: Any = function.__globals__
        try:
            for part in name.split("."):
                found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
            found = inspect.unwrap(found) if callable(found) else None
        except Exception:  # noqa: BLE001 - something that is loaded when it is first asked (settings), and cannot be here
            found = None
        if isinstance(found, FunctionType) and not found.__code__.co_filename.startswith((*_NOT_USERS, "<")):
            yield found


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
