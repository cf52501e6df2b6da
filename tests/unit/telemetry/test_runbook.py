"""The runbook has a line for each metric, each error and each family of codes, and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from ductor_stream.cli.explain import code_sections, error_pages
from ductor_stream.telemetry.metrics import declarations

PAGE = (Path(__file__).resolve().parents[3] / "docs/operations/runbook.md").read_text("utf-8")


def test_each_metric_has_its_line() -> None:
    told = re.findall(r"^\| `(ductor_\w+)` \| \S.{20,} \|$", PAGE, re.MULTILINE)
    assert told == [each.exposed_name for _, each in declarations()]


def test_each_error_has_its_line() -> None:
    told = re.findall(r"^\| \[`(\w+)`\]\(\.\./errors/\1\.md\) \| \S.+ \|$", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(error_pages())


def test_each_family_of_codes_has_its_line() -> None:
    told = re.findall(r"^\| \[[a-z ]+\]\(\.\./errors/codes/([\w-]+)\.md\) \| \S.{20,} \|$", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(code_sections())
