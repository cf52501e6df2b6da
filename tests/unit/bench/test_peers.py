"""What the peers' harness decides without any peer: options, plan, ratios."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.app import noop
from bench.peers.common import edges, step_result
from bench.peers.compare import Measured, ratios
from bench.peers.install import HERE
from bench.peers.options import parsed
from bench.peers.plan import FIGURES, OURS, PEERS, QUICK, TUNED, WORKLOADS
from bench.peers.workloads import WORKLOADS as RUNNABLE
from bench.peers.workloads import closed_loop


def test_options_keep_their_types_and_the_last_one_wins() -> None:
    options = parsed(["inflight=2", "seconds=2", "mode=default-num-partitions=1;flush", "inflight=3"])
    assert (options.inflight, options.seconds) == (3, 2.0)
    assert options.words() == {"default-num-partitions": "1", "flush": ""}


@pytest.mark.parametrize("label", [*OURS, *PEERS])
def test_each_participant_can_be_measured(label: str) -> None:
    participant = {**OURS, **PEERS}[label]
    assert (HERE / f"on_{participant.product}.py").is_file()
    assert label in OURS or (HERE / "requirements" / f"{participant.product}.txt").is_file()
    for workload in participant.workloads:
        assert workload in RUNNABLE and workload in WORKLOADS.values()
        assert parsed([*participant.arguments(workload), *QUICK]).serial == 5


def test_ratios_say_how_many_times_better_ours_is() -> None:
    measured = Measured()
    for rate, p50 in ((1_000, 2.0), (3_000, 2.0), (2_000, 2.0)):
        measured.add("ductor, SyncMatch", "chains", {"steps_per_s": rate})
        measured.add("ductor, SyncMatch", "serial", {"p50_ms": p50})
    measured.add(TUNED, "chains", {"steps_per_s": 500})
    measured.add(TUNED, "serial", {"p50_ms": 10.0})
    ours = {"ours": "ductor, SyncMatch", "peer": TUNED}
    assert ratios(measured) == [
        {"figure": "chains_steps_per_s", **ours, "times": 4.0, "aim": 4.0},
        {"figure": "serial_p50_ms", **ours, "times": 5.0},
    ]


def test_every_figure_is_of_a_workload() -> None:
    assert {figure.workload for figure in FIGURES} == set(WORKLOADS.values())


def test_edges_of_a_run_that_slows_down() -> None:
    marks = [0.0, 1.0, 2.0, 4.0, 6.0]
    found = edges(marks, 2)
    assert (found["first_ms"], found["last_ms"], found["last_over_first"]) == (1_000, 2_000, 2.0)
    assert found["ms_per_step"] == 1_500


def test_a_closed_loop_makes_as_many_calls_as_asked_for() -> None:
    under_way, most = 0, 0

    async def call() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    assert len(asyncio.run(closed_loop(call, 3, count=10))) == 10
    assert most == 3


def test_every_participant_does_the_same_step() -> None:
    async def ours() -> object:
        return await noop(7)

    assert json.dumps(asyncio.run(ours())) == json.dumps(step_result(7))
