"""Much at once in one run: what a limit or an error cuts short leaves nothing behind, and what is kept stays linear."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from rig import Rig
from rig_worker import PlainWorker, doubled, fence
from support import until

OPEN, ANSWERED = 20, 30
"""Steps that are still out when the run is over its limit, and those that bring it there."""
WIDTH = 50
ITEMS, BAD = 1_000, 400
OOPS = {"outcome": "failed", "error": {"type": "Oops", "message": "no", "retryable": False}}


def up_to(last: int) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """A worker's answers to the items before that one; it never answers others."""
    return lambda task: doubled(task) if task["input"][0] < last else None


def stops(rig: Rig) -> Counter[tuple[Any, ...]]:
    """How often each attempt was told to stop."""
    told = [json.loads(message.value() or b"") for message in rig.read(rig.topics.attempt_control)]
    assert {each["type"] for each in told} <= {"attempt.stop"}
    return Counter(tuple(fence(each).values()) for each in told)


def outstanding(worker: PlainWorker, first: int) -> set[tuple[Any, ...]]:
    """The attempts of the items from that one on: nobody has answered them."""
    return {tuple(fence(task).values()) for task in worker.tasks if task["input"][0] >= first}


def test_a_fan_out_over_its_limit_leaves_no_orphans(rig: Rig) -> None:
    """R10: failed visibly in the midst of it; each open attempt is told to stop, once, and each child ends with it."""
    n = OPEN + ANSWERED

    def answer(task: dict[str, Any]) -> dict[str, Any] | None:
        if task["input"][0] < ANSWERED:
            return doubled(task)
        rig.send(rig.topics.attempt_results, "b", {"type": "attempt.heartbeat", **fence(task)})
        return None

    worker = rig.worker(answer)
    first = rig.coordinator(rig.fast(history_limit=ANSWERED + 1))
    rig.start("b", workflow="brood", input=n)
    children = [f"b-{number}" for number in range(n)]
    rig.until_status("running", *children)
    done = "select count(*) as n from eec_workflow_step_attempt where ns = {ns} and phase = 'finished'"
    until(lambda: rig.rows(done)[0]["n"] == ANSWERED, what="as many answered as the history may have")
    beating = "select node_id from eec_open_attempt where ns = {ns}"
    until(lambda: len(rig.rows(beating)) == OPEN, what="all others heard of")
    assert rig.run("b")["status"] == "running"
    assert stops(rig) == Counter()

    rig.signal(children[0], "done", signal_id="s")  # one event more
    rig.until_status("failed", "b")
    assert rig.run("b")["error"]["code"] == "history_limit"
    rig.until_status("cancelled", *children[1:])
    until(lambda: len(stops(rig)) >= OPEN, what="the stops")
    first.stop()
    rig.coordinator()
    rig.start("after", workflow="words", input=0)
    rig.until_status("completed", "after")
    rig.check()
    assert stops(rig) == dict.fromkeys(outstanding(worker, ANSWERED), 1)
    assert rig.rows("select run_id from eec_workflow_run where ns = {ns} and closed_at is null") == []
    assert rig.run(children[0])["status"] == "completed"
    assert rig.rows(beating) == []
    ends = Counter(row["outcome"] for row in rig.attempts("b") if row["phase"] == "finished")
    assert ends == {"completed": ANSWERED}
    assert [told.type for told in rig.told() if told.run_id == "b"] == ["run.started", "run.failed"]


def most_open(rig: Rig, run_id: str) -> int:
    """The most attempts that were out at a time, commit by commit."""
    moves = rig.rows(
        "select sum(case phase when 'dispatched' then 1 else -1 end)::int as n from eec_workflow_step_attempt"
        " where ns = {ns} and run_id = %s and phase <> 'late' group by at order by at",
        run_id,
    )
    return max(accumulate(row["n"] for row in moves))


def stored(rig: Rig, run_id: str) -> int:
    """Bytes that are kept of a run."""
    return sum(
        int(
            rig.rows(f"select coalesce(sum({size}), 0) as n from {table} where ns = {{ns}} and run_id = %s", run_id)[0][
                "n"
            ]
        )
        for table, size in (
            ("eec_workflow_transition", "octet_length(records)"),
            ("eec_workflow_run", "octet_length(state) + coalesce(octet_length(result), 0)"),
            ("eec_workflow_step_attempt", "octet_length(node_id) + octet_length(step) + octet_length(worker)"),
        )
    )


def failing(rig: Rig) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A worker's answers when one item is bad."""
    return lambda task: OOPS if task["input"] == [BAD] else doubled(task) or {}


def test_a_map_that_collects_has_all_results_in_order_within_its_bound(rig: Rig) -> None:
    """One item of thousands fails: its error stands in its place. What is kept grows as the items do."""
    worker = rig.worker(failing(rig))
    rig.coordinator()
    for n in (500, 2_000):
        rig.start(f"m{n}", workflow="spread", input=[n, WIDTH, "collect"])
        rig.until_status("completed", f"m{n}", within_ms=60_000)
        expected: list[Any] = [x * 2 for x in range(n)]
        expected[BAD] = "Oops"
        assert rig.run(f"m{n}")["result"] == expected
        assert most_open(rig, f"m{n}") == WIDTH
    assert len(worker.effects) == 2_500
    assert set(worker.effects.values()) == {1}
    assert stops(rig) == Counter()
    ratio = stored(rig, "m2000") / stored(rig, "m500")
    assert ratio < 4.8, "linear in the number of items"
    rig.check()


def test_a_map_that_cancels_stops_all_that_is_out_and_sends_no_more(rig: Rig) -> None:
    """At the first error: those that are in flight are told to stop, once each, those behind them are never sent."""
    worker = rig.worker(up_to(BAD))
    rig.coordinator()
    rig.start("m", workflow="spread", input=[ITEMS, WIDTH, "cancel"])
    until(lambda: len(outstanding(worker, BAD)) == WIDTH, within_ms=60_000, what="all lanes at work")
    (bad,) = [task for task in worker.tasks if task["input"] == [BAD]]
    rig.send(rig.topics.attempt_results, "m", {"type": "attempt.finished", **fence(bad), "worker": "plain", **OOPS})
    rig.until_status("completed", "m")
    assert rig.run("m")["result"] == ["Oops"]
    assert most_open(rig, "m") == WIDTH
    rig.check()
    out = outstanding(worker, BAD) - {tuple(fence(bad).values())}
    until(lambda: len(stops(rig)) >= len(out), what="the stops")
    assert stops(rig) == dict.fromkeys(out, 1)
    assert {task["input"][0] for task in worker.tasks} == set(range(BAD + WIDTH))
    ends = Counter(row["outcome"] for row in rig.attempts("m") if row["phase"] == "finished")
    assert ends == {"completed": BAD, "failed": 1}
