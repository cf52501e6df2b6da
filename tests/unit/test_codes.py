"""Every code that users see has its section in docs/errors/codes, and ``explain`` prints it; what the code says is in a set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from ductor_stream.cli.explain import code_sections, error_pages
from ductor_stream.cli.main import main
from ductor_stream.coordinator.undelivered import INPUT_TOO_LARGE
from ductor_stream.engine.actions import REFUSALS, Refusal
from ductor_stream.engine.events import CONDEMNED, RUN_CODES
from ductor_stream.engine.reduce.control import _STANDS_IN_THE_WAY
from ductor_stream.engine.state import CLOSED, SUSPENSIONS, Status
from ductor_stream.engine.transitions import moved
from ductor_stream.protocol.vocabulary import ERROR_CODES, OWNER_REASONS, REASONS, REJECTION_CODES

ROOT = Path(__file__).resolve().parents[2]
FAMILIES: dict[str, set[str]] = {
    "attempts": {*ERROR_CODES, INPUT_TOO_LARGE},
    "dead-letters": {*REASONS, *OWNER_REASONS},
    "refusals": set(REFUSALS),
    "runs": set(RUN_CODES),
    "suspensions": set(SUSPENSIONS),
}
CODES = [(family, code) for family, codes in FAMILIES.items() for code in sorted(codes)]


def test_each_family_has_its_page_and_each_section_its_code() -> None:
    assert {family: set(found) for family, found in code_sections().items()} == FAMILIES


@pytest.mark.parametrize(("family", "code"), CODES)
def test_a_section_says_what_it_means_what_is_lost_and_what_to_do(family: str, code: str) -> None:
    title, _, meaning, lost, loss, to_do, steps = code_sections()[family][code].strip().split("\n\n")
    assert (title, lost, to_do) == (f"# `{code}`", "## What is lost", "## What to do")
    assert len(meaning) > 30 and re.match(r"[A-Z`].+[.!]", loss)
    assert all(line.startswith("- ") and len(line) > 10 for line in steps.splitlines())


@pytest.mark.parametrize("code", sorted({code for _, code in CODES}))
def test_explain_prints_all_that_is_said_of_a_code(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", code])
        raise SystemExit(0)
    said = [sections[code] for sections in code_sections().values() if code in sections]
    out = capfd.readouterr().out
    assert ended.value.code in (0, None) and said
    for text in (*said, error_pages().get(code, "")):
        assert text.strip() in out


def test_no_section_is_said_twice() -> None:
    for page in (ROOT / "docs/errors/codes").glob("*.md"):
        heads = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)
        assert len(heads) == len(set(heads))
        assert all(re.fullmatch(r"`\w+`", head) for head in heads), "only codes have headings there"


# -- the sets are all that the code says -------------------------------------------------------


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the package by the last part of what is called."""
    for path in (ROOT / "ductor_stream").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                yield name, node


CALLS = list(calls())


def words(*names: str, place: int = 0) -> set[str]:
    """The single words that stand at this place (or as ``code=``) in calls of these names."""
    found = set()
    for name, call in CALLS:
        if name in names:
            said = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == "code")]
            found |= {each.value for each in said if isinstance(each, ast.Constant)}
    return {word for word in found if isinstance(word, str) and word.isidentifier()}


def test_the_code_suspends_for_these_reasons_and_no_other() -> None:
    assert words("Parked") == set(SUSPENSIONS) and len(SUSPENSIONS) == len(set(SUSPENSIONS))


def test_the_code_condemns_for_these_reasons_and_no_other() -> None:
    assert words("Condemned") == set(CONDEMNED)


def test_failures_have_codes_of_attempts_or_of_runs() -> None:
    said = words("Failure", "_told", "_refused", "rejected") | words("AttemptTimedOut", place=3)
    assert said <= FAMILIES["attempts"] | FAMILIES["runs"]
    assert said >= {"child", "child_exists", "timeout_run", "user", "cancelled", "dispatch_lost"} | REJECTION_CODES


def test_dead_letters_have_these_reasons_and_no_other() -> None:
    internal = {"not_storable"}  # becomes PoisonedRun in the store, which names the run
    assert words("DataError", "DeadLetter") - internal <= FAMILIES["dead-letters"]


def test_refusals_are_made_through_their_type_alone() -> None:
    assert set(get_args(Refusal)) == set(REFUSALS)
    assert sum(name == "emit" and _says(call, "command.rejected") for name, call in CALLS) == 1
    assert words("refuse") == {"run_closed", "run_exists"}


def _says(call: ast.Call, word: str) -> bool:
    return any(isinstance(each, ast.Constant) and each.value == word for each in call.args)


@pytest.mark.parametrize("status", sorted(set(get_args(Status)) - CLOSED))
@pytest.mark.parametrize("kind", ["pause", "resume", "terminate"])
def test_what_stands_in_the_way_of_a_command_has_its_word(status: Status, kind: str) -> None:
    if moved(status, kind) is None:  # type: ignore[arg-type]
        assert _STANDS_IN_THE_WAY[status] == f"run_is_{status}"
