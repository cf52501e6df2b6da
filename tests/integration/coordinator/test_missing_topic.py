"""A topic that is not there: what is meant for it waits as rows, and nobody else is held back (protocol 12)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rig import Rig, rule_breaks
from support import until
from topic_config import APPENDED, NOBODYS_TIME, configure

from ductor_stream.kafka.topics import create_topics, plan


def waiting(rig: Rig) -> int:
    """Records that wait to be produced."""
    return len(rig.rows("select id from eec_inbox where ns = {ns} and kind = 'produce'"))


def test_a_queue_whose_topic_does_not_exist_yet(rig: Rig) -> None:
    """Protocol 12, R9: readiness names it; other queues go on; created later, the runs complete."""
    running = rig.coordinator()
    rig.worker()
    rare = [f"rare{n}" for n in range(5)]
    rig.start(*rare, workflow="elsewhere", input="rare")
    until(lambda: waiting(rig) == 5, what="five records that wait")
    topic = rig.topics.tasks("rare")
    until(lambda: any(topic in why for why in running.reasons()), what="readiness naming the topic")
    others = [f"r{n}" for n in range(30)]
    rig.start(*others)
    rig.until_status("completed", *others)
    assert running.count("ductor_undeliverable", permanent="no") == 0, "known to be missing, it was tried all the same"
    assert rule_breaks(rig.database, rig.namespace, at_rest=False) == []
    create_topics(rig.admin, [each for each in plan(rig.topics, ["rare"]) if each.name == topic])
    rig.worker(queue="rare")
    rig.until_status("completed", *rare)
    until(lambda: running.reasons() == [], within_ms=15_000, what="ready again")
    rig.check()


def test_a_queue_whose_topic_goes_while_records_are_sent(rig: Rig) -> None:
    """Protocol 12, R5b: refused by the broker, before anybody could know."""
    running = rig.coordinator()
    rig.start("before")
    until(lambda: rig.attempts("before"), what="dispatched")
    rig.delete(rig.topics.tasks("default"))
    ids = [f"r{n}" for n in range(10)]
    rig.start(*ids, workflow="fan")
    rig.until_status("running", *ids)
    until(lambda: waiting(rig) >= 1, what="records that wait")
    running.stop()
    successor = rig.coordinator(ready=False)
    until(lambda: successor.owned == {0, 1}, what="taken while the topic is not there")
    rig.start("later", workflow="words", input=1)
    rig.until_status("running", "later")  # a commit that notes the ids of the topics that are there
    rig.create()
    rig.worker()
    rig.until_status("completed", "before", *ids)
    rig.check()


@pytest.mark.parametrize("bound", [{"unconfirmed_limit": 3}, {"unconfirmed_bytes": 1_500}])
def test_a_broker_that_does_not_confirm(rig: Rig, bound: dict[str, int]) -> None:
    """Protocol 11, R9: after so many batches, or bytes of three of them, intake and timers rest, readiness says so, and it goes on by itself."""
    withheld: list[tuple[Any, Any]] = []
    withholding = [True]

    def prepare(coordinator: Any) -> None:
        produce, poll = coordinator.log.produce, coordinator.log.poll

        def held(records: Any, acknowledged: Any) -> None:
            withheld.append((records, acknowledged))

        def serve(timeout: float, limit: int) -> Any:
            while withheld and not withholding:
                produce(*withheld.pop(0))
            return poll(timeout, limit)

        coordinator.log.produce, coordinator.log.poll = held, serve

    running = rig.coordinator(rig.fast(**bound), prepare=prepare)
    ids = [run_id for run_id in (f"r{n}" for n in range(40)) if rig.home(run_id) == 0]
    outbox = "select seq from eec_outbox where ns = {ns} and partition = 0"
    for batches, run_id in enumerate(ids[:3], 1):
        rig.start(run_id)
        until(lambda batches=batches: len(rig.rows(outbox)) == batches, what="one batch more")
    until(lambda: any("does not confirm" in why for why in running.reasons()), what="the reason")
    rig.start(*ids[3:])
    rig.start("elsewhere", workflow="nap", input=1)
    assert len(rig.rows(outbox)) == 3
    withholding.clear()
    rig.worker()
    rig.until_status("completed", *ids, "elsewhere")
    until(lambda: running.reasons() == [], what="ready again")
    rig.check()


@pytest.mark.parametrize(
    "limit", [pytest.param("the topic's", marks=pytest.mark.moves("ductor_undeliverable")), "the wire's"]
)
def test_a_record_that_no_broker_takes(rig: Rig, limit: str) -> None:
    """Protocol 12: it becomes an event of its run: found before the commit where possible, else told by the broker."""

    def spacious(coordinator: Any) -> None:
        task = coordinator.committer._encoder.task

        def wrapped(run_id: str, *rest: Any) -> Any:
            record = task(run_id, *rest)
            return msgspec.structs.replace(record, value=record.value + b" " * 1_500_000) if run_id == "big" else record

        coordinator.committer._encoder.task = wrapped

    rig.worker()
    running = rig.coordinator(prepare=spacious if limit == "the wire's" else None)
    if limit == "the topic's":
        configure(rig.bootstrap, rig.topics.tasks("default"), {"max.message.bytes": "200000"})
    ids = [f"r{n}" for n in range(5)]
    rig.start(*ids, workflow="measure", input=1_000)
    rig.start("big", workflow="measure", input=400_000)
    rig.until_status("completed", *ids)
    rig.until_status("failed", "big")
    assert rig.run("big")["error"]["type"] == "Undeliverable"
    assert running.count("ductor_undeliverable", permanent="yes") == (limit == "the topic's")
    rig.check()


@pytest.mark.parametrize("topic", ["tasks", "lifecycle"])
def test_records_whose_time_the_broker_refuses(rig: Rig, topic: str) -> None:
    """Protocol 12, R9: they wait until the clock, or the topic, is mended. No attempt fails of it, no end is unheard of."""
    name = rig.topics.tasks("default") if topic == "tasks" else rig.topics.run_lifecycle
    configure(rig.bootstrap, name, NOBODYS_TIME)
    running = rig.coordinator()
    rig.worker()
    ids = [f"r{n}" for n in range(10)]
    rig.start(*ids)
    until(lambda: waiting(rig) >= 1, what="records that wait")
    configure(rig.bootstrap, name, APPENDED)
    rig.until_status("completed", *ids)
    until(lambda: {told.run_id for told in rig.told() if told.type == "run.completed"} == {*ids}, what="all ends told")
    assert running.count("ductor_undeliverable", permanent="yes") == 0
    assert rig.letters() == []
    rig.check()
