"""Every fenced block of a page is executed by a test, or says here why it is not."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import yaml
from deploy.tooling import checked, composed, named, tool
from pages import PAGES, ROOT, blocks, fenced, lines

EXECUTED = [
    ("README.md", "python", "# shop.py", "tests/e2e/test_newcomer.py"),
    ("README.md", "", "pip install", "tests/packages.py"),
    ("README.md", "", "ductor-stream start", "tests/e2e/test_newcomer.py"),
    ("README.md", "", "echo", "tests/e2e/test_example_pages.py"),
    ("docs/clients.md", "python", "", "tests/integration/test_client.py"),
    ("docs/deployment.md", "yaml", "", "tests/deploy/test_pages.py"),
    ("docs/deployment.md", "", "helm install", "tests/deploy/test_page_blocks.py"),
    ("docs/deployment.md", "", "[Service]", "tests/e2e/test_example_pages.py"),
    ("docs/guides/*.md", "python", "", "tests/unit/test_guides.py"),
    ("docs/guides/rules.md", "", "", "tests/e2e/test_example_pages.py"),
    ("docs/operations.md", "toml", "", "tests/deploy/test_pages.py"),
    ("docs/operations.md", "", "ductor-stream purge", "tests/e2e/test_example_pages.py"),
    ("docs/operations/runbook.md", "", "ductor-stream doctor", "tests/e2e/test_example_pages.py"),
    ("docs/security.md", "", "ductor-stream acls", "tests/e2e/test_example_pages.py"),
    ("docs/security.md", "", "ductor-stream migrate", "tests/deploy/test_security.py"),
    ("docs/security.md", "sql", "", "tests/deploy/test_security.py"),
    ("docs/security.md", "python", "# tokens.py", "tests/deploy/test_pages.py"),
    ("docs/security.md", "toml", "", "tests/deploy/test_pages.py"),
    ("docs/security.md", "yaml", "", "tests/deploy/test_pages.py"),
    ("docs/tutorial.md", "python", "", "tests/e2e/test_tutorial.py"),
    ("docs/tutorial.md", "console", "", "tests/e2e/test_tutorial.py"),
    ("docs/tutorial.md", "", "shop.py changed", "tests/e2e/test_tutorial.py"),
    ("docs/wire.md", "json *", "", "tests/unit/test_protocol_docs.py"),
    # It is examples/plain_worker.py to the byte, which tests/e2e/test_foreign_clients.py runs.
    ("docs/wire.md", "python", '"""A worker that knows', "tests/unit/test_protocol_docs.py"),
    ("docs/wire.md", "", "echo", "tests/e2e/test_foreign_clients.py"),
    ("examples/orders/README.md", "", "", "tests/e2e/test_example_pages.py"),
]
"""Page, language and beginning of a block: the file whose test executes it (what something says: compares it)."""

NOT_EXECUTED = [
    ("CONTRIBUTING.md", "", "make install", "they run the tests"),
    ("CONTRIBUTING.md", "", ".venv/bin/python -m pytest", "they run the tests"),
    ("docs/architecture.md", "", " any service", "a drawing"),
    ("docs/cli.md", "", "ductor-stream", "usage; tests/unit/cli/test_reference.py compares it with the commands"),
    ("docs/deployment.md", "", "docker build", "needs a Docker daemon; what it names is looked up here"),
    ("docs/deployment.md", "", "docker compose", "needs a Docker daemon; it is resolved here, without one"),
    ("docs/tutorial.md", "", "pip install", "README's installation, which tests/packages.py does"),
    ("docs/chaos.md", "", "make chaos", "minutes; tests/e2e/test_chaos.py plays 25 seconds, here it is parsed"),
    ("docs/model.md", "", "make model", "minutes; tests/unit/test_model.py checks a smaller world, here it is parsed"),
    ("docs/proof.md", "", "make", "minutes to hours; tests/simulation, fuzzing and unit do less, here it is parsed"),
]
"""The same of those that no test executes: the reason."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_executed_or_says_why_not(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    for block in fenced(page):
        fitting = [
            (where, start, told)
            for where, language, start, told in (*EXECUTED, *NOT_EXECUTED)
            if fnmatch(name, where) and fnmatch(block.language, language) and block.text.startswith(start)
        ]
        assert len(fitting) == 1, f"{name}:{block.line} is executed by {fitting or 'no test: say here which, or why'}"


@pytest.mark.parametrize(("where", "language", "start", "told"), [*EXECUTED, *NOT_EXECUTED])
def test_nothing_is_said_of_blocks_that_are_gone(where: str, language: str, start: str, told: str) -> None:
    found = [block for page in ROOT.glob(where) for block in fenced(page) if fnmatch(block.language, language)]
    assert any(block.text.startswith(start) for block in found)
    if told.endswith(".py") and " " not in told:
        assert Path(where).name.replace("*.md", "docs/guides") in (ROOT / told).read_text("utf-8")


# -- lines that take minutes: their targets, programs, options and values exist -------------------

PARSED = [
    command
    for page in ("CONTRIBUTING.md", "docs/chaos.md", "docs/model.md", "docs/proof.md")
    for line in lines(blocks(page))
    for command in (line.partition(" #")[0].strip(), *re.findall(r"# or: (python .*)", line))
]


def test_such_lines_are_found() -> None:
    assert len(PARSED) >= 14 and sum("python" in command for command in PARSED) >= 8


@pytest.mark.parametrize("command", [each for each in PARSED if each.startswith("make ")])
def test_what_is_made_can_be_made(command: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, _, value in (word.partition("=") for word in shlex.split(command) if "=" in word):
        assert f"$({name})" in (ROOT / "Makefile").read_text("utf-8") and value in done.stdout


@pytest.mark.parametrize("command", [each for each in PARSED if not each.startswith("make ")])
def test_what_is_called_takes_these_options(command: str) -> None:
    program, *words = shlex.split(command)
    assert program in ("python", ".venv/bin/python")
    # With `--help` last a program has looked at all values before; what it does in a moment it shall do.
    ended = [] if "--list" in words else ["--help"]
    done = subprocess.run(
        [sys.executable, *words, *ended], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    told = re.findall(r"(?<![\w-])--?\w[\w-]*", done.stdout)
    options = [word for word in words[2 if words[0] == "-m" else 1 :] if word.startswith("-")]
    assert not ended or set(options) <= set(told)
    assert all((ROOT / word).exists() for word in words if "/" in word)


# -- what needs a daemon or a cluster --------------------------------------------------------------

DEPLOYMENT = "docs/deployment.md"


def shell_lines(beginning: str) -> list[str]:
    """The lines of the page's block that begins so."""
    [block] = [block for block in blocks(DEPLOYMENT) if block.startswith(beginning)]
    return lines([block])


def test_helm_installs_what_the_page_says(tmp_path: Path) -> None:
    """`template` in the place of `install`, all else as it stands, beside the values above it."""
    [line] = shell_lines("helm install")
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    (tmp_path / "values.yaml").write_text(blocks(DEPLOYMENT, "yaml")[0], "utf-8")
    program, install, *rest = shlex.split(line)
    assert (program, install) == ("helm", "install")
    done = subprocess.run(
        [tool("helm"), "template", *rest], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    pod = named(objects, "Deployment", "coordinator")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "shop:1.4.0" and "shop:app" in pod["containers"][0]["args"]


def test_compose_is_given_what_it_takes() -> None:
    takes = re.findall(r"--[\w-]+", checked("docker-compose", "up", "--help"))
    for line in shell_lines("docker compose"):
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
        command = words[len(given) :]
        assert command[:3] == ["docker", "compose", "up"]
        assert {word for word in command if word.startswith("--")} <= set(takes)
        services = composed(given)
        assert services["worker"]["build"]["args"]["APP"] == given.get("APP_DIR", "examples/orders")
        assert given.get("APP", "orders:app") in services["worker"]["command"]
        scaled = [word.partition("=")[0] for before, word in pairwise(command) if before == "--scale"]
        assert set(scaled) <= set(services)


def test_docker_is_given_arguments_that_the_image_has() -> None:
    [line] = shell_lines("docker build")
    words = shlex.split(line)
    name, _, folder = words[words.index("--build-arg") + 1].partition("=")
    assert re.search(rf"^ARG {name}\b", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert (ROOT / folder).is_dir() and words[-1] == "."
