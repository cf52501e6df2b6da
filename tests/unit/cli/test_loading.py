"""``MODULE:ATTRIBUTE``: found in the working directory; what is wrong is told with the user's file and line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fresh_name

from ductor_stream.cli.loading import load_app
from ductor_stream.errors import InvalidDefinition


class Folder:
    """A working directory with modules that no other test imports."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def module(self, text: str) -> str:
        name = fresh_name("shop").replace("-", "_")
        (self.path / f"{name}.py").write_text(text, encoding="utf-8")
        return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Folder(tmp_path)


GOOD = 'from ductor_stream.app import App\napp = App("shop")\nother = App("bank")\n'


def test_an_app_is_found_by_module_and_attribute(folder: Folder) -> None:
    name = folder.module(GOOD)
    assert load_app(f"{name}:app").namespace == "shop"
    assert load_app(f"{name}:other").namespace == "bank"


def test_the_attribute_is_app_unless_named(folder: Folder) -> None:
    assert load_app(folder.module(GOOD)).namespace == "shop"


def test_a_path_stands_for_its_folder_and_name(folder: Folder) -> None:
    (folder.path / "deep").mkdir()
    name = Folder(folder.path / "deep").module(GOOD)
    assert load_app(f"deep/{name}.py:app").namespace == "shop"


def refusal(spec: str) -> str:
    with pytest.raises(InvalidDefinition) as caught:
        load_app(spec)
    return str(caught.value)


def test_a_module_that_is_not_there(folder: Folder) -> None:
    name = folder.module(GOOD)
    told = refusal(f"{name}x:app")
    assert f"there is no module {name}x in {folder.path}" in told
    assert f"did you mean {name}?" in told


def test_an_import_that_fails_names_the_users_line(folder: Folder) -> None:
    name = folder.module("x = 1\n\nimport there_is_no_such_module\n")
    assert f"{name}.py:3: No module named 'there_is_no_such_module'" in refusal(f"{name}:app")


def test_an_error_in_the_module_names_the_users_line(folder: Folder) -> None:
    name = folder.module("import json\n\ndef f():\n    return json.loads('{')\n\nf()\n")
    told = refusal(f"{name}:app")
    assert f"{name}.py:4: JSONDecodeError" in told


def test_a_syntax_error_names_the_users_line(folder: Folder) -> None:
    name = folder.module("x = 1\nif x\n")
    assert f"{name}.py:2: SyntaxError: expected ':'" in refusal(f"{name}:app")


def test_a_wrong_declaration_names_the_users_line(folder: Folder) -> None:
    name = folder.module('from ductor_stream.app import App\n\napp = App("a.b")\n')
    assert f"{name}.py:3" in refusal(f"{name}:app")


def test_another_attribute_offers_the_apps_that_are_there(folder: Folder) -> None:
    name = folder.module(GOOD + "number = 7\n")
    assert f"it has {name}:app, {name}:other" in refusal(f"{name}:application")
    assert "is of type int, not an App" in refusal(f"{name}:number")


def test_a_module_without_any_app(folder: Folder) -> None:
    assert "declares no App at all" in refusal(f"{folder.module('x = 1')}:app")


def test_an_empty_name(folder: Folder) -> None:
    assert "MODULE:ATTRIBUTE" in refusal(":app")
