"""A seed that fails shrinks to a short trace, and the command that is printed repeats it."""

from __future__ import annotations

import sys
from unittest.mock import patch

import msgspec
import pytest

from ductor_stream.testing.simulation import Limits, Report, __main__, simulate
from ductor_stream.testing.simulation.shrinking import Shrunk, shrink
from simulation.bugs import BUGS

BUG = "failed_delivery_counts_as_done"
MOST = 60


LINES = 180
"""Of a trace that has something to leave out: where the bug shows in the first moments there is little."""


def failing() -> Report:
    """The first seed in which the bug shows, but not at once."""
    return next(report for report in map(simulate, range(MOST)) if report.broken and len(report.trace) > LINES)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_not_needed_is_left_out() -> None:
    with BUGS[BUG]():
        whole = failing()
        least = shrink(whole, tries=400)
        again = simulate(whole.seed, least.limits)
    assert least.report.broken.partition(":")[0] == whole.broken.partition(":")[0] == "R5"
    # A record that was not taken is what the bug forgets; of the other kinds of fault none can be spared.
    assert "undelivered" in least.report.kinds
    with BUGS[BUG]():
        for kind in least.report.kinds:
            spared = msgspec.structs.replace(least.limits, without=least.limits.without | {kind})
            assert not simulate(whole.seed, spared).broken.startswith("R5"), f"{kind} could have been left out"
    assert least.report.faults < whole.faults / 4
    assert len(least.report.trace) < len(whole.trace) * 2 / 3  # it ends as soon as the rule breaks, which is early
    assert again.digest == least.report.digest


def test_the_command_line_says_what_was_left_out() -> None:
    limits = Limits(frozenset({"crash", "pause"}), frozenset({"run-3"}), 7)
    report = simulate(3, limits)
    assert report.faults <= 7
    assert "run-3" not in report.asked
    options = Shrunk(limits, report).options
    assert options == "--seeds 3 --without crash,pause --drop run-3 --faults 7"
    with patch.object(sys, "argv", ["simulation", *options.split()]):
        assert __main__._limits(__main__._arguments()) == limits


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failure_is_told_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with BUGS["dispatch_before_commit"](), patch.object(sys, "argv", ["simulation", "--seeds", "0:5"]):
        assert __main__.main() == 1
    said = capsys.readouterr().out
    assert "seed 0: R4" in said
    assert "again: python -m ductor_stream.testing.simulation --seeds 0 --" in said
    assert "shrunk from" in said
