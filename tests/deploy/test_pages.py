"""All pages: their links lead somewhere, their commands exist; and the values on those about deployment render."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from deploy.kubernetes_schemas import problem
from deploy.tooling import SMALLEST, rendered
from pages import PAGES, ROOT, blocks, lines

from ductor_stream.cli.dev import BESIDE
from ductor_stream.cli.main import cli
from ductor_stream.config import Settings, load
from ductor_stream.kafka.options import client_options

VALUES = [ROOT / "docs" / name for name in ("deployment.md", "security.md")]
"""Pages whose YAML are values of the chart."""

BLOCKS = [(page.name, block) for page in VALUES for block in blocks(page, "yaml")]


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
    inline = re.findall(r"`(ductor-stream [^`]+)`", page.read_text("utf-8"))
    return [*inline, *(line for line in lines(blocks(page)) if line.startswith("ductor-stream "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:]
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
    assert {"dev", "start", "runs"} <= {line.split()[1] for line in commands(ROOT / "README.md")}
    assert sum("purge --namespace" in line for line in commands(ROOT / "docs/operations.md")) == 2


SETTINGS = [(str(page.relative_to(ROOT)), block) for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "block"), SETTINGS)
def test_settings_on_a_page_are_taken(page: str, block: str, tmp_path: Path) -> None:
    (tmp_path / "ductor.toml").write_text(block, "utf-8")
    assert load({"DUCTOR_CONFIG": str(tmp_path / "ductor.toml")}) != Settings()


def test_the_function_on_the_page_about_security_brings_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [program] = blocks("docs/security.md", "python")
    assert program.startswith("# tokens.py\n")
    [block] = [block for page, block in SETTINGS if page == "docs/security.md"]
    (tmp_path / "tokens.py").write_text(f"import our_company\n{program}", "utf-8")
    (tmp_path / "our_company.py").write_text(
        "from types import SimpleNamespace\n"
        "def token_for(name): return SimpleNamespace(value=f'token of {name}', expires_at=1.8e9)\n", "utf-8",
    )  # fmt: skip
    (tmp_path / "ductor.toml").write_text(block, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tokens", "our_company"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    options = client_options("producer", "broker:9093", load({}).kafka)
    assert options["oauth_cb"](options["sasl.oauthbearer.config"]) == ("token of shop-worker", 1.8e9)
    del sys.modules["tokens"], sys.modules["our_company"]
