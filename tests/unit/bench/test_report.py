"""The benchmark's pure parts: what is written, compared and drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plot, report
from bench.accounting import Usage
from bench.results import Results, quantile
from bench.run import MEASURES
from bench.targets import TARGETS

_TARGETS = {target.key: target for target in TARGETS}


def test_each_key_has_one_target() -> None:
    assert len(_TARGETS) == len(TARGETS)


def test_every_measure_says_what_it_does() -> None:
    assert all(measure.__doc__ for measure in MEASURES.values())


@pytest.mark.parametrize(
    ("key", "value", "met", "reach"),
    [
        ("chain_sync_steps_per_s", 40_000, True, 2.0),
        ("chain_sync_steps_per_s", 10_000, False, 0.5),
        ("takeover_ms", 1_000, True, 2.0),
        ("takeover_ms", 4_000, False, 0.5),
        ("takeover_ms", 0, True, math.inf),
    ],
)
def test_a_target_is_met_by_more_or_by_less(key: str, value: float, met: bool, reach: float) -> None:
    assert _TARGETS[key].met(value) is met
    assert plot.reach(_TARGETS[key], value) == reach


def test_a_figure_is_the_median_of_its_repeats() -> None:
    results = Results({"takeover_ms": [900, 100, 200]})
    spread = results.spread("takeover_ms")
    assert (spread.median, spread.least, spread.most, spread.repeats) == (200, 100, 900, 3)


def test_a_key_without_a_mode_is_the_worse_of_both() -> None:
    results = Results({"a": [1.0], "b": [2.0]})
    results.choose_worst("rate", ["a", "b"], better="higher")
    results.choose_worst("time", ["a", "b"], better="lower")
    assert results.figures() == {"a": 1.0, "b": 2.0, "rate": 1.0, "time": 2.0}


def test_the_best_shape_brings_its_other_figures_along() -> None:
    results = Results({"x_1_steps_per_s": [5], "x_1_p50_ms": [7], "x_2_steps_per_s": [9], "x_2_p50_ms": [8]})
    assert results.choose_best("x", ["x_1", "x_2", "x_3"], ("p50_ms",)) == "x_2"
    assert results.samples["x_steps_per_s"] == [9] and results.samples["x_p50_ms"] == [8]


def test_quantiles_of_few_and_of_none() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 0.99) == 3
    assert math.isnan(quantile([], 0.5))


def test_a_busy_machine_makes_a_figure_doubtful() -> None:
    results = Results()
    results.detail("chains", "SyncMatch", Usage(1.0, {"broker": 0.5}, 0.9, 0.2, 0.1, 100))
    assert len(results.warnings) == 2 and "20% of the CPU" in results.warnings[0]


def test_what_is_published_can_be_read_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "QUICK", tmp_path / "quick.json")
    results = Results({"takeover_ms": [1234.567], "chain_sync_steps_per_s": [50_000, 7, 900_000], "odd": [math.nan]})
    results.detail("take-over", "SyncMatch", takeover_ms=1234.567)
    report.publish(results, quick=True)
    written = json.loads((tmp_path / "quick.json").read_text())
    assert written["takeover_ms"] == 1235 and written["odd"] is None and written["quick"]
    assert written["spread"]["chain_sync_steps_per_s"] == [7, 900_000, 3]
    drawn = ElementTree.parse(tmp_path / "quick.svg").getroot()
    titles = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text") if each.get("class") == "label"]
    assert titles == [target.title for target in TARGETS if target.key in results.samples]


def test_bars_beyond_the_axis_stay_on_the_paper() -> None:
    bar = plot.Bar("a < b", "1 of 2", math.inf, 0.0, 1e9)
    drawn = ElementTree.fromstring(plot.drawn([bar], "caption"))
    whole = float(drawn.get("width") or 0)
    for line in drawn.iter("{http://www.w3.org/2000/svg}line"):
        assert 0 <= float(line.get("x1") or 0) <= float(line.get("x2") or 0) <= whole
