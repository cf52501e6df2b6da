"""Each deliberate bug is found: the checkers are no decoration. ``docs/proof.md`` has the table."""

from __future__ import annotations

import pytest

from ductor_stream.testing.simulation import simulate
from simulation.bugs import BUGS

FOUND_AT: dict[str, int] = {}
"""Bug -> a seed that finds it: so that the suite need not search again. ``python -m tests.simulation.hunt`` does."""


@pytest.mark.parametrize("name", sorted(FOUND_AT))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_bug_is_found(name: str) -> None:
    with BUGS[name]():
        assert simulate(FOUND_AT[name]).broken


@pytest.mark.parametrize("name", sorted(FOUND_AT))
def test_without_the_bug_that_seed_passes(name: str) -> None:
    assert not simulate(FOUND_AT[name]).broken


def test_no_bug_is_without_a_seed() -> None:
    assert BUGS.keys() == FOUND_AT.keys()
