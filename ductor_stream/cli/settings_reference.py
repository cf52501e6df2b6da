"""The page ``docs/configuration.md``, out of the settings' own docstrings: ``python -m ductor_stream.cli.settings_reference``."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping

import click
import msgspec

from ductor_stream import config
from ductor_stream.config import OTHERS, VARIABLES, Settings
from ductor_stream.config_names import DATABASE_OPTIONS, KAFKA_OPTIONS, REGISTRY_OPTIONS
from ductor_stream.config_rules import OWNED_DATABASE
from ductor_stream.kafka.options import OWNED

_HEAD = """\
# Configuration

<!-- Written by `python -m ductor_stream.cli.settings_reference > docs/configuration.md`: change `config.py`. -->

For each setting, the first of these that has it wins: an option of the command; its environment variable, or the
content of the file that the same name with `_FILE` behind it names; the file that `DUCTOR_CONFIG` names, else
`ductor.toml` in the working directory; the servers of a `ductor-stream dev` that runs in this folder; its default. An empty
variable counts as not set. `ductor-stream config show` prints what is in force, and where each value comes from.

A key that does not exist is refused with the nearest name, and so is a variable that looks like a slip of one.

## Settings

| variable | in the file | default | meaning |
|---|---|---|---|
"""

_KAFKA = """
## Kafka's options

`[kafka]` in the file, `DUCTOR_KAFKA_<OPTION>` in the environment (in capitals, with underscores for dots): {count} options of
librdkafka, and `oauth_cb`, which names a function that brings [tokens](security.md#kafka-tls-and-who-one-is). An option that only
one kind of client knows goes to that kind alone. These cannot be set, since a guarantee rests on them:

| option | why |
|---|---|
"""

_DATABASE = """
## Postgres's options

`[database]` in the file, `DUCTOR_DATABASE_<OPTION>` in the environment: {count} options of libpq. They win over those in the URL.
These cannot be set:

| option | why |
|---|---|
"""

_REGISTRY = """
## The schema registry's options

`[schema_registry]` in the file, `DUCTOR_SCHEMA_REGISTRY_<OPTION>` in the environment; needs the extra `ductor-stream[registry]`:

{names}.
"""

_OTHERS = """
## Variables beside the configuration

| variable | meaning |
|---|---|
"""


def reference() -> str:
    """The whole page."""
    registry = ", ".join(f"`{name}`" for name in sorted(REGISTRY_OPTIONS))
    return "".join(
        [
            _HEAD,
            *_settings(),
            _KAFKA.format(count=len(KAFKA_OPTIONS - OWNED.keys()) - 1),
            *_owned(OWNED),
            _DATABASE.format(count=len(DATABASE_OPTIONS - OWNED_DATABASE.keys())),
            *_owned(OWNED_DATABASE),
            _REGISTRY.format(names=registry),
            _OTHERS,
            *(f"| `{name}` | {meaning} |\n" for name, meaning in OTHERS.items()),
        ]
    )


def _settings() -> Iterator[str]:
    told = docstrings()
    for field in msgspec.structs.fields(Settings):
        variables, key, meaning = _parted(field.name, told[field.name])
        default = "" if field.default in (None, {}, msgspec.NODEFAULT) else f"`{field.default}`"
        yield f"| {variables} | {key} | {default} | {meaning} |\n"


def _parted(name: str, text: str) -> tuple[str, str, str]:
    """Variables, key in the file and meaning, out of ```` ``VARIABLE``, ``[table] key``: meaning ````."""
    head, _, meaning = text.partition(": ")
    usual = f"DUCTOR_{name.upper()}"
    table = re.search(r"``(\[\w+\][^`]*)``", head)
    key = f"`{table[1]}`" if table else f"`{name}`"
    variable = f"`{usual}`" if usual in VARIABLES else f"`{usual}_…`"
    return variable, key, meaning.replace("``", "`").rstrip(".")


def docstrings() -> dict[str, str]:
    """What stands below each field of ``Settings``, on one line."""
    [found] = [
        node
        for node in ast.parse(inspect.getsource(config)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    told: dict[str, str] = {}
    for field, below in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            told[field.target.id] = " ".join(str(below.value.value).split())
    return told


def _owned(options: Mapping[str, str]) -> Iterator[str]:
    for name, why in sorted(options.items()):
        yield f"| `{name}` | {why} |\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
