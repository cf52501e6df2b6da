"""Thousands of timers due in the same second: once each though their owner dies, and nobody else waits for them (R11).

``DUCTOR_TEST_TIMERS=100000`` makes it as many as the design promises.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from rig import FAST, HOME, Rig
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.events import TimerFired
from ductor_stream.engine.state import decode_records

MANY = int(os.environ.get("DUCTOR_TEST_TIMERS", "5000"))
PATIENCE_MS = 30_000 + MANY * 10
TURNS = 24
"""Within so many commits full of timers a chain begins and takes three steps through its worker: 8 to 13 were seen on a machine
four times as busy as it has processors. Of 100,000 timers that is 3 in 100."""


def ahead(rig: Rig, seconds: float) -> float:
    """That moment by Postgres's clock (seconds since 1970)."""
    return float(rig.rows("select extract(epoch from clock_timestamp()) as at")[0]["at"]) + seconds


def start_all(rig: Rig, prefix: str, count: int, **start: Any) -> None:
    """Start them by the batch: one by one would take longer than all the rest."""
    producer = Producer({"bootstrap.servers": rig.bootstrap, "partitioner": HOME, "linger.ms": 20})
    for number in range(count):
        body = {"type": "run.start", "run_id": f"{prefix}{number}", **start}
        producer.produce(rig.topics.run_events, json.dumps(body), f"{prefix}{number}")
        producer.poll(0)
    assert producer.flush(60) == 0


def when_all_sleep(rig: Rig) -> float:
    """By when this machine, as busy as it is now, has probably started all of them: measured with a part of them."""
    part = MANY // 10
    began = ahead(rig, 0)
    start_all(rig, "w", part, workflow="words", input=1)
    query = "select count(*) as n from eec_workflow_run where ns = {ns} and workflow = 'words'"
    until(lambda: rig.rows(query)[0]["n"] == part, within_ms=PATIENCE_MS, what="a tenth as many started")
    now = ahead(rig, 0)
    return math.ceil(now + 5 + (now - began) * 15)


def dozers(rig: Rig, status: str) -> int:
    """How many of them have that status."""
    query = "select count(*) as n from eec_workflow_run where ns = {ns} and status = %s and workflow = 'dozers'"
    return int(rig.rows(query, status)[0]["n"])


def last_commit(rig: Rig) -> str:
    """The latest transaction that has advanced a run."""
    return str(rig.rows("select max(txid)::text as txid from eec_workflow_transition where ns = {ns}")[0]["txid"])


def fired_since(rig: Rig, commit: str, run_ids: Sequence[str]) -> int:
    """How many timers of the burst fired after that commit and until the last of these runs had ended, in Postgres's order."""
    query = """
        select records from eec_workflow_transition where ns = {ns} and txid > %s::xid8
         and txid <= (select max(txid) from eec_workflow_transition where ns = {ns} and run_id = any(%s))
         and run_id in (select run_id from eec_workflow_run where ns = {ns} and workflow = 'dozers')"""
    found = (decode_records(bytes(row["records"])) for row in rig.rows(query, commit, list(run_ids)))
    return sum(isinstance(record.event, TimerFired) for records in found for record in records)


@pytest.mark.timeout(600 + MANY // 50)
def test_an_owner_is_killed_with_many_timers_due(rig: Rig) -> None:
    """R5, R6: each fires once, none early, and chains that begin in the midst of it are done when few of them have fired."""
    rig.worker()
    child = rig.child(instance="one")
    at = when_all_sleep(rig)
    start_all(rig, "d", MANY, workflow="dozers", input=[at, 1])
    # Where starting them took longer than was to be expected, some have slept already.
    until(lambda: dozers(rig, "running") + dozers(rig, "completed") == MANY, within_ms=PATIENCE_MS, what="all begun")
    child.kill()
    until(lambda: ahead(rig, 0) > at, within_ms=PATIENCE_MS, what="all due")
    chains = [f"c{number}" for number in range(5)]
    before = last_commit(rig)
    rig.start(*chains)
    child = rig.child(instance="one")
    until(lambda: 0 < dozers(rig, "completed"), what="some fired")
    child.kill()
    assert dozers(rig, "completed") < MANY, "killed in the midst of it"
    rig.child(instance="one")
    until(lambda: dozers(rig, "completed") == MANY, within_ms=PATIENCE_MS, what="all fired")
    rig.until_status("completed", *chains)
    assert fired_since(rig, before, chains) <= TURNS * FAST.due_limit
    early = (
        "select run_id from eec_workflow_run where ns = {ns} and workflow = 'dozers' and closed_at < to_timestamp(%s)"
    )
    assert rig.rows(early, at) == []
    # A start, and one timer that fired; or a start after the time, which had nothing to wait for.
    twice = (
        "select run_id, record_version from eec_workflow_run where ns = {ns} and workflow = 'dozers' "
        "and record_version <> case when started_at < to_timestamp(%s) then 2 else 1 end"
    )
    assert rig.rows(twice, at) == []
    rig.check()


def test_many_timers_of_one_run_are_taken_by_turns(rig: Rig) -> None:
    """R11: no commit is larger than another's because one run has slept in thousands of tasks."""
    sizes: list[int] = []

    def measured(coordinator: Coordinator) -> None:
        commit = coordinator.commit

        def wrapped(prepared: Any) -> int:
            sizes.append(prepared.events)
            return commit(prepared)

        coordinator.commit = wrapped  # type: ignore[method-assign]

    rig.worker()
    rig.coordinator(prepare=measured)
    at = ahead(rig, 3 + MANY / 2_000)
    rig.start("many", workflow="dozers", input=[at, MANY])
    rig.until_status("running", "many", within_ms=PATIENCE_MS)
    chains = [f"c{number}" for number in range(5)]
    until(lambda: ahead(rig, 0) > at, within_ms=PATIENCE_MS, what="all due")
    before = last_commit(rig)
    rig.start(*chains)
    rig.until_status("completed", "many", *chains, within_ms=PATIENCE_MS)
    assert rig.run("many")["result"] == MANY
    assert fired_since(rig, before, chains) <= TURNS * FAST.due_limit
    assert max(sizes) <= 2 * FAST.batch_limit, "due timers, and what has come beside them"
    rig.check()
