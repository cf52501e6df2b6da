"""``ductor-stream deployments``: which workflow versions still have open runs, and whether an app has code for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ductor_stream.app import App
from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.description import moment
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer, print_table
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import Declared, OpenVersion

_DIGEST = 12
"""Characters of a digest that people are shown."""
_COLUMNS = ("workflow", "version", "running", "suspended", "paused", "oldest_at", "code", "digest", "served")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@connection_options
def deployments(app: str, as_json: bool, **given: Any) -> None:
    """Workflow versions with open runs, by status, and whether this app has code for them.

    The version of a workflow may be removed from the code when no open run needs it any more.
    """
    loaded = load_app(app)
    settings = settings_for(of_app=True, **given)
    with RunReader(settings.need_database(), settings.topics(loaded.namespace).namespace) as reader:
        found = described(loaded, reader.open_versions(), reader.declared())
    answer(found, as_json, _show)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    shown = [
        {
            **row,
            **row["open"],
            "digest": (row["digest"] or "")[:_DIGEST],
            "served": ", ".join(each["digest"][:_DIGEST] for each in row["served"]),
        }
        for row in rows
    ]
    print_table(_COLUMNS, shown, hide_empty=("suspended", "paused", "oldest_at"))
    for row in rows:
        if row["code"] == "missing":
            click.echo(
                f"{row['workflow']} version {row['version']}: {sum(row['open'].values())} open run(s) and no code here; "
                "they wait until a coordinator with that version is there"
            )


def described(app: App, opened: Sequence[OpenVersion], declared: Sequence[Declared]) -> list[dict[str, Any]]:
    """Every version that has open runs or is in the app.

    ``code``: ``deployed`` (here, and served by a coordinator before), ``new`` (here, never served as it is now),
    ``missing`` (only open runs have it). ``served`` is all code that was ever served for it, oldest first.
    """
    keys = sorted({(each.workflow, each.version) for each in opened} | app.workflows.keys())
    return [_described(app, key, opened, declared) for key in keys]


def _described(
    app: App, key: tuple[str, str], opened: Sequence[OpenVersion], declared: Sequence[Declared]
) -> dict[str, Any]:
    own = [each for each in opened if (each.workflow, each.version) == key]
    served = [each for each in declared if (each.workflow, each.version) == key]
    workflow = app.workflows.get(key)
    digest = workflow.definition.digest if workflow is not None else None
    known = digest in {each.digest for each in served}
    return {
        "workflow": key[0],
        "version": key[1],
        "open": {each.status: each.runs for each in own},
        "oldest_at": moment(min((each.oldest_at for each in own), default=None)),
        "code": "missing" if digest is None else "deployed" if known else "new",
        "digest": digest,
        "served": [{"digest": each.digest, "first_at": moment(each.declared_at)} for each in served],
    }
