"""The broker forgets: topics are deleted and re-created under open runs, and every run still completes (R5b)."""

from __future__ import annotations

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from rig import Letter, Rig
from rig_worker import fence, silent
from support import until

from ductor_stream.kafka.topics import create_topics
from ductor_stream.ports import INBOUND


def open_runs(rig: Rig) -> list[str]:
    """Runs with attempts in flight that nobody answers, and runs that wait for a signal or a timer."""
    steps = [f"s{n}" for n in range(6)]
    waits = [f"w{n}" for n in range(6)]
    rig.start(*steps, workflow="fan", input=3)
    rig.start(*waits, workflow="words", input=1)
    rig.start("nap", workflow="nap", input=3_000)
    rig.until_status("running", *steps, *waits, "nap")
    dispatched = "select run_id from eec_workflow_step_attempt where ns = {ns} and phase = 'dispatched'"
    until(lambda: len(rig.rows(dispatched)) == 18, what="all dispatched")
    until(lambda: not rig.rows("select seq from eec_outbox where ns = {ns}"), what="all of it confirmed")
    return [*steps, *waits, "nap"]


def ids(rig: Rig) -> dict[str, str]:
    """Topic ids as Postgres has them for partition 0."""
    found: dict[str, str] = rig.rows("select topic_ids from eec_partition where ns = {ns} and partition = 0")[0][
        "topic_ids"
    ]
    return found


def complete(rig: Rig, runs: list[str]) -> None:
    """A worker that answers, and the signals that are awaited."""
    rig.worker()
    for run_id in runs:
        if run_id.startswith("w"):
            rig.signal(run_id, "on", signal_id="on")
    rig.start("new")
    rig.until_status("completed", "new", *runs, within_ms=60_000)
    rig.check()


@pytest.mark.parametrize("owner", ["alive", "dead"])
def test_all_topics_are_deleted(rig: Rig, owner: str) -> None:
    """R5b: what is open is redriven, by the owner that saw it happen or by one that comes later."""
    running = rig.coordinator()
    runs = open_runs(rig)
    before = ids(rig)
    if owner == "dead":
        running.stop()
    rig.delete()
    rig.create()
    if owner == "dead":
        running = rig.coordinator()
    complete(rig, runs)
    assert running.count("ductor_redrives") >= 18
    until(lambda: ids(rig).keys() >= before.keys() and "" not in ids(rig).values(), what="the new ids noted")
    assert not set(before.values()) & set(ids(rig).values())
    lost = {letter.headers["ductor-source-topic"] for letter in rig.letters() if letter.reason == "lost_unread"}
    assert rig.topics.run_events in lost


@pytest.mark.parametrize("name", ["tasks.default", "attempt-results"])
def test_one_topic_is_deleted(rig: Rig, name: str) -> None:
    """R5b: tasks that no worker has read yet, or results that no coordinator has."""
    topic = f"ductor.{rig.namespace}.{name}"
    running = rig.coordinator()
    runs = open_runs(rig)
    if name == "attempt-results":
        # Done, and their results lie on the topic while it is deleted: nobody is there to read them.
        running.stop()
        worker = rig.worker()
        until(lambda: sum(worker.effects.values()) == 18, what="all results produced")
        worker.close()
    rig.delete(topic)
    rig.create()
    if name == "attempt-results":
        running = rig.coordinator()
    complete(rig, runs)
    assert 18 <= running.count("ductor_redrives") <= 36


def test_partitions_above_those_of_the_runs_are_audited_too(rig: Rig) -> None:
    """R5b: input that stood unread on a partition that is no run's home is told like any other (found by chaos)."""
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    running = rig.coordinator()
    rig.start("before")
    running.stop()
    for future in admin.create_partitions([NewPartitions(rig.topics.inbound(short), 4) for short in INBOUND]).values():
        future.result(10)
    rig.renew_clients()
    running = rig.coordinator()
    rig.start("elsewhere", workflow="words", input=1, partition=3)
    rig.until_status("running", "elsewhere")
    running.stop()
    rig.signal("elsewhere", "lost", partition=3)
    rig.delete(rig.topics.run_events)
    plans = [msgspec.structs.replace(each, partitions=4) for each in rig.plans if each.name == rig.topics.run_events]
    until(lambda: create_topics(rig.admin, plans), what="the topic made anew")
    running = rig.coordinator()
    lost = (rig.topics.run_events, "3")
    until(lambda: lost in {place(each) for each in rig.letters()}, what="the loss told")
    complete(rig, ["before"])


def test_a_partition_of_which_nothing_was_read_yet_is_audited_too(rig: Rig) -> None:
    """R5b: its owner knew the topic, and was away when the first record came and went (found by chaos)."""
    running = rig.coordinator()
    home = rig.home("lost")
    noted = f"select 1 from eec_partition where ns = {{ns}} and partition = {home} and topic_ids::text ~ 'run-events'"
    until(lambda: rig.rows(noted), what="the topics' ids noted")
    running.stop()
    rig.start("lost")
    rig.delete(rig.topics.run_events)
    plans = [each for each in rig.plans if each.name == rig.topics.run_events]
    until(lambda: create_topics(rig.admin, plans), what="the topic made anew")
    rig.renew_clients()
    rig.worker()
    rig.coordinator()
    lost = (rig.topics.run_events, str(home))
    until(lambda: lost in {place(each) for each in rig.letters()}, what="the loss told")
    rig.start("lost")
    rig.until_status("completed", "lost")


@pytest.mark.moves("ductor_redrives", "ductor_attempts_redriven")
def test_a_redrive_that_is_cut_short_begins_anew(rig: Rig) -> None:
    """R5b: the new topic ids are noted for good only when everything that was open has been sent again."""
    running = rig.coordinator()
    runs = open_runs(rig)
    running.stop()
    rig.delete(rig.topics.tasks("default"))
    rig.create()
    taken = []

    def stuck(coordinator: object) -> None:
        def produce(records: object, acknowledged: object) -> None:
            taken.append(records)

        coordinator.log.produce = produce  # type: ignore[attr-defined]

    running = rig.coordinator(prepare=stuck)
    rig.signal("w0", "on")
    rig.until_status("completed", "w0")
    assert taken, "the redrive has begun, and nothing arrives"
    running.stop()
    running = rig.coordinator()
    complete(rig, runs)
    assert running.count("ductor_redrives") >= 18


def test_a_result_that_comes_after_the_topics_are_gone(rig: Rig) -> None:
    """R5b, R6: a worker that had taken its task, and one that gets the redrive, count once."""
    running = rig.coordinator()
    first = rig.worker(silent)
    rig.start("r", workflow="words", input=1)
    rig.start("s", workflow="chain", input=2)
    (task,) = until(lambda: list(first.tasks), what="a task taken")
    first.close()
    rig.delete()
    rig.create()
    second = rig.worker(silent)
    until(lambda: second.tasks, within_ms=20_000, what="the redrive")
    assert [fence(each) for each in second.tasks] == [fence(task)] * len(second.tasks)
    second.close()
    body = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 0}
    rig.send(rig.topics.attempt_results, "s", body, body)
    rig.signal("r", "on")
    complete(rig, ["r", "s"])
    late = rig.rows("select node_id from eec_workflow_step_attempt where ns = {ns} and phase = 'late'")
    assert late == [{"node_id": task["node_id"]}]
    told = {each.headers["ductor-source-topic"] for each in rig.letters()}
    assert rig.topics.run_events in told
    told = {(*place(each), each.headers["ductor-source-offset"]) for each in rig.letters()}
    assert len(told) == len({each[:2] for each in told}), "a gap was told twice, with different offsets"
    assert running.count("ductor_records_lost") == 0


def place(letter: Letter) -> tuple[str, str]:
    """Topic and partition that a letter is about."""
    return letter.headers["ductor-source-topic"], letter.headers["ductor-source-partition"]
