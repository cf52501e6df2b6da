"""All pages: their links lead somewhere, their commands exist; and the values on those about deployment render."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from deploy.kubernetes_schemas import problem
from deploy.tooling import ROOT, SMALLEST, rendered

from ductor_stream.cli.dev import BESIDE
from ductor_stream.cli.main import cli

PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/*.md") for page in ROOT.glob(pattern)
)
VALUES = [ROOT / "docs" / name for name in ("deployment.md", "security.md")]
"""Pages whose YAML are values of the chart."""

BLOCKS = [
    (page.name, block)
    for page in VALUES
    for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as links name them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", page.read_text("utf-8")):
        assert anchor in anchors(page.parent / target if target else page), anchor


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_values_on_a_page_make_objects_that_a_cluster_takes(page: str, block: str, tmp_path: Path) -> None:
    objects = rendered({**SMALLEST, **yaml.safe_load(block)}, tmp_path)
    assert [told for each in objects if (told := problem(each, "1.36"))] == []


def commands(page: Path) -> list[str]:
    """Every ``ductor-stream …`` of a page, in a block or in a line."""
    text = page.read_text("utf-8")
    inline = re.findall(r"`(ductor-stream [^`]+)`", text)
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return [*inline, *(line for line in blocks.splitlines() if line.startswith("ductor-stream "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line)[1:]
        command: Any = cli
        while isinstance(command, click.Group) and words:
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, f"{line}: there is no command {words[0]}"
            command, words = found, words[1:]
        if command.name == "dev" and words and words[0] in BESIDE:
            command = BESIDE[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known
        assert not unknown, f"{line}: {unknown}"


def test_a_page_has_such_commands() -> None:
    assert len(commands(ROOT / "docs" / "security.md")) >= 5 and len(BLOCKS) >= 6
