"""What a seed draws: faults, runs. And what the report makes of a history."""

from __future__ import annotations

from xml.etree import ElementTree

from unit.chaos.history_of_two import RUN, commit, history, said

from chaos.app import Plan, expected
from chaos.faults import EVERYTHING, FAULTS
from chaos.figures import Span, Taken, pauses, repeats, takeover_times
from chaos.plot import drawn as plotted
from chaos.schedule import drawn
from chaos.scripts import Scripts
from chaos.series import latencies_of, series_of


def test_the_same_seed_draws_the_same_faults_and_runs() -> None:
    assert drawn(7, list(FAULTS), 50) == drawn(7, list(FAULTS), 50) != drawn(8, list(FAULTS), 50)
    one, two = Scripts(7), Scripts(7)
    assert [one.next() for _ in range(50)] == [two.next() for _ in range(50)]


def test_each_kind_comes_once_before_any_comes_twice() -> None:
    names = [planned.name for planned in drawn(3, list(FAULTS), 2 * len(FAULTS))]
    assert sorted(names[: len(FAULTS)]) == sorted(names[len(FAULTS) :]) == sorted(FAULTS)


def test_every_fault_says_what_it_does_and_claims_something() -> None:
    for fault in FAULTS.values():
        assert fault.told
        assert fault.claims
        assert fault.claims <= EVERYTHING


def test_clients_say_as_many_words_as_a_run_waits_for() -> None:
    scripts = Scripts(1)
    for kind, script in (scripts.next() for _ in range(200)):
        plan = Plan(**script[0][1].body["input"])
        words = sum(letter.body["type"] == "run.signal" for _, letter in script)
        assert words == (0 if kind in ("cancelled", "terminated") else plan.words * plan.laps)
        assert len({letter.id for _, letter in script}) == len(script)


def test_the_result_that_a_run_should_have() -> None:
    assert expected(Plan(steps=2, fan=2, words=1, laps=2), [7, 8]) == [0, 1, 0, 1, 7, 0, 1, 0, 1, 8]
    assert expected(Plan(steps=0, children=2, slow=True), []) == [-1, 0, 1, 0, 1]


def test_the_plot_of_a_history_is_sound() -> None:
    found = history()
    found.lines = [
        {"at": 1.0, "what": "fault", "number": 1, "name": "network"},
        {"at": 1.0, "what": "holds", "number": 1, "told": "a – b: <cut>"},
        {"at": 2.0, "what": "mending", "number": 1},
        {"at": 3.0, "what": "mended", "number": 1},
        {"at": 5.0, "what": "calm"},
    ]
    series = series_of(found)
    assert (sum(series.started), sum(series.ended), series.calm_at) == (2, 2, 5.0)
    assert [(bar.name, bar.began, bar.mending, bar.mended) for bar in series.bars] == [("network", 1.0, 2.0, 3.0)]
    assert ElementTree.fromstring(plotted(series)).tag.endswith("svg")
    assert latencies_of(found) == (2.0, 2.0, 2.0)


def test_a_take_over_is_from_the_kill_to_the_next_owners_first_commit() -> None:
    takes = [Taken(1.0, "a", 0, 1), Taken(1.0, "a", 1, 1), Taken(2.0, "b", 1, 2), Taken(9.0, "b", 0, 2)]
    commits = [commit(RUN, 7, said(0)), commit(RUN, 12, said(1), epoch=2)]
    assert takeover_times(commits, takes, 5.0, "a") == [7.0], "partition 1 had gone to another owner before"
    assert takeover_times(commits, takes, 5.0, "c") == []
    assert pauses(commits, 0.0, 20.0) == [8.0]


def test_only_executions_of_the_span_that_came_again_are_counted() -> None:
    found = history()
    found.executed *= 3
    assert repeats(found, Span("crashes", 1.0, 2.0)) == 2
    assert repeats(found, Span("crashes", 2.0, 3.0)) == 0
