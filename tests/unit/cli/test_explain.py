"""Each error's page can be read where the package is installed, and each refusal says how."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ductor_stream.cli.explain import error_pages
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
    assert [each["code"] for each in found] == list(error_pages())
    assert all(re.match(r"[A-Z].{20,}", each["means"], re.DOTALL) for each in found), found


def test_an_unknown_code_is_refused_with_the_nearest(call: Call) -> None:
    code, _, err = call("explain", "invalid_confg")
    assert code == 3 and "did you mean 'invalid_config'?" in err


def test_an_error_names_the_command(call: Call) -> None:
    told = remedy(InvalidValue("x"))
    assert "`ductor-stream explain invalid_value`" in told
    assert call("explain", "invalid_value")[0] == 0
