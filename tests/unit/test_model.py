"""The model of commit, dispatch and ownership (docs/model.md): it keeps the rules, each seeded bug breaks one."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "model.md").read_text()
MODEL = (ROOT / "model" / "Partition.tla").read_text()


def _check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_check", ROOT / "model" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


CHECK = _check()


@pytest.mark.parametrize(("batch", "disruptions", "states"), [(2, 1, 20_000), (1, 2, 300_000)])
def test_the_protocol_keeps_its_rules(batch: int, disruptions: int, states: int) -> None:
    answer = CHECK.check(batch=batch, disruptions=disruptions)
    assert answer.broken == "", answer.said
    assert answer.states > states  # else it was checked in a world in which nothing happens


@pytest.mark.parametrize("bug", sorted(CHECK.BUGS))
def test_each_seeded_bug_breaks_its_rule(bug: str) -> None:
    assert CHECK.check(bug).broken == CHECK.BUGS[bug]


def test_every_bug_of_the_model_is_tried() -> None:
    named = set(re.findall(r'Bug # "(\w+)"|Bug = "(\w+)"', MODEL))
    sets = re.findall(r"Bug \\notin \{([^}]*)\}", MODEL)
    found = {first or second for first, second in named} | {
        name.strip(' "') for each in sets for name in each.split(",")
    }
    assert found == set(CHECK.BUGS)


def test_the_page_maps_each_action_to_functions_that_exist() -> None:
    body = MODEL.partition("Next ==")[2].partition("Spec ==")[0]
    actions = set(re.findall(r"\b([A-Z]\w+)\(", body)) - {"StoreOffset", "Resubmit"}
    rows = dict(re.findall(r"^\| `([A-Z]\w+)` \|(.*)\|$", PAGE, re.MULTILINE))
    assert set(rows) == actions
    for row in rows.values():
        for path, name in re.findall(r"`([\w/.]+\.(?:py|sql))`(?: \(`(\w+)`\))?", row):
            text = (ROOT / path).read_text()
            assert not name or re.search(rf"def {name}\(|-- name: {name}\b", text), (path, name)
