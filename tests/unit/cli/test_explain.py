"""Each error's page can be read where the package is installed, and each refusal says how."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ductor_stream.cli.explain import code_sections, error_pages
from ductor_stream.cli.failures import remedy
from ductor_stream.errors import InvalidValue

Call = Callable[..., tuple[int, str, str]]


def test_a_page_is_printed_as_it_stands(call: Call) -> None:
    code, out, _ = call("explain", "invalid_config")
    assert (code, out.split()) == (0, error_pages()["invalid_config"].split())
    code, out, _ = call("explain", "invalid_config", "--json")
    assert json.loads(out) == {"code": "invalid_config", "text": error_pages()["invalid_config"]}


def test_all_codes_are_listed_with_what_they_mean(call: Call) -> None:
    found = json.loads(call("explain", "--json")[1])
    assert [each["code"] for each in found] == sorted(each["code"] for each in found)
    families = {"error": error_pages(), **code_sections()}
    assert {(each["of"], each["code"]) for each in found} == {
        (of, code) for of, all_ in families.items() for code in all_
    }
    assert all(re.match(r"[A-Z].{20,}", each["means"], re.DOTALL) for each in found), found


def test_an_unknown_code_is_refused_with_the_nearest(call: Call) -> None:
    code, _, err = call("explain", "invalid_confg")
    assert code == 3 and "did you mean 'invalid_config'?" in err
    code, _, err = call("explain", "hartbeat_lost")
    assert code == 3 and "did you mean 'heartbeat_lost'?" in err


def test_a_word_of_two_families_is_explained_for_both(call: Call) -> None:
    code, out, _ = call("explain", "poisoned_run")
    assert code == 0 and error_pages()["poisoned_run"].strip() in out
    assert code_sections()["dead-letters"]["poisoned_run"].strip() in out


def test_an_error_names_the_command(call: Call) -> None:
    told = remedy(InvalidValue("x"))
    assert "`ductor-stream explain invalid_value`" in told
    assert call("explain", "invalid_value")[0] == 0
