"""Whatever is typed: a command ends with one of its exit codes and says why, never with a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ductor_stream.cli.main import cli, main

SCALE = float(os.environ.get("DUCTOR_TEST_SCALE", "1"))
APP = """
from ductor_stream import App
app = App("fuzzed")

@app.step
def double(x: int) -> int:
    return 2 * x

@app.workflow
async def shop(run, x: int) -> int:
    return await run.step(double, x)
"""
NOWHERE = "postgresql://postgres@127.0.0.1:1/none"
KNOWN = ["fuzzed_shop:app", "fuzzed_shop", "fuzzed_shop:double", "history.json", "shop", "1d", "{}", "1", "-1", NOWHERE]
# No surrogates and no NUL: no shell can hand them over; nothing that begins with a hyphen is an argument.
_TYPED = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.one_of(st.sampled_from(KNOWN), st.text(_TYPED, max_size=30))
SERVERS = ("kafka_bootstrap", "health_port", "health_host")
"""Not given: a command would wait for a Kafka that is not there, or open a port."""
_PHASES = (Phase.explicit, Phase.generate)
"""Not shrunk: a line is short enough to be read."""
SETTINGS = ["DUCTOR_NAMESPACE", "DUCTOR_LOG_LEVEL", "DUCTOR_KAFKA_SECURITY_PROTOCOL", "DUCTOR_DATABASE_URL", "DUCTOR_X"]


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands but those that begin servers."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            if found is not None and (*path, name) not in {("dev",), ("demo",)}:
                yield from leaves(found, *path, name)
    else:
        yield path, command


COMMANDS = sorted(leaves(cli), key=lambda entry: entry[0])


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its parameters, sound or not, and now and then one that it does not have."""
    path, command = draw(st.sampled_from(COMMANDS))
    found = list(path)
    for parameter in command.params:
        if parameter.name in SERVERS or not draw(st.integers(0, 3 if parameter.required else 1)):
            continue
        value = draw(TEXTS)
        if isinstance(parameter, click.Option):
            found += [parameter.opts[0]] if parameter.is_flag else [f"{parameter.opts[0]}={value}"]
        else:
            found.append(value)
    return found + draw(st.lists(st.one_of(TEXTS, st.just("--unknown")), max_size=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the commands run: with an app, and no servers."""
    found = tmp_path_factory.mktemp("fuzzed")
    (found / "fuzzed_shop.py").write_text(APP)
    with contextlib.chdir(found), patch.object(sys, "path", [str(found), *sys.path]):
        yield found


@given(
    line=lines(),
    environment=st.dictionaries(st.sampled_from(SETTINGS), TEXTS, max_size=2),
    history=st.binary(max_size=50),
)
@settings(max_examples=int(150 * SCALE), deadline=None, phases=_PHASES, suppress_health_check=list(HealthCheck))
def test_whatever_is_typed(folder: Path, line: list[str], environment: dict[str, str], history: bytes) -> None:
    (folder / "history.json").write_bytes(history)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}
    given_: dict[str, Any] = {name: value.replace("\0", "") for name, value in environment.items()}
    said, complained = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, kept | given_, clear=True),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main(line)
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
    why = complained.buffer.getvalue()
    assert code in range(6), (line, code)
    assert b"Traceback" not in why, line
    assert code in (0, 1) or why.strip(), f"{line} ended with {code} and said nothing"
