"""Attempts that run in the owner's own process, and partitions that move meanwhile (protocol 13, 17; R5)."""

from __future__ import annotations

import json
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from rig import Rig, Running
from rig_worker import fence
from support import until

from ductor_stream.kafka.topics import cluster_id
from ductor_stream.ports import LocalWorkers
from ductor_stream.store.postgres import PostgresStore


class Hands(LocalWorkers):
    """Local workers whose attempts end when the test says so."""

    def __init__(self, slots: int = 100) -> None:
        self.free = slots
        self.tasks: list[dict[str, Any]] = []
        self.diverted: set[bytes] = set()
        self._done: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()

    def reserve(self, queue: str, step: str) -> bool:
        self.free -= self.free > 0
        return self.free > 0

    def cancel_reservation(self, queue: str) -> None:
        self.free += 1

    def run_all(self, tasks: Iterable[tuple[bytes, bytes, Sequence[tuple[str, bytes]]]]) -> None:
        self.tasks += [json.loads(task) for task, _, _ in tasks]

    def results(self, timeout: float) -> list[tuple[bytes, bytes]]:
        try:
            return [self._done.get(timeout > 0, timeout or None)]
        except queue.Empty:
            return []

    def busy(self) -> int:
        return len(self.tasks)

    def divert(self, partition_keys: Iterable[bytes]) -> None:
        self.diverted |= set(partition_keys)

    def finish(self, task: dict[str, Any]) -> dict[str, Any]:
        """The attempt has ended; its result is where the coordinator looks for it."""
        body = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": task["input"][0] * 2}
        self._done.put((task["run_id"].encode(), json.dumps(body).encode()))
        return body


def with_hands(rig: Rig, hands: Hands, prepare: Callable[[Any], object] = lambda _: None) -> Running:
    return rig.coordinator(local=hands, prepare=prepare)


def crash(running: Running) -> None:
    """The next best thing to SIGKILL in a thread: nothing is committed or said at the end."""
    coordinator: Any = running.coordinator
    coordinator.releasing = lambda partitions: None
    coordinator.store.release = lambda *_: None
    coordinator.config = type("Now", (), {"__getattr__": lambda _, name: 0})()
    coordinator.dispatcher.slow_sync = lambda _: []
    running.stop()


OPEN = "select token::text from eec_open_attempt where ns = {ns}"
OUTBOX = "select seq from eec_outbox where ns = {ns}"


def slow(rig: Rig, hands: Hands) -> None:
    """One attempt runs here for so long that it has a row of its own, and its batch is confirmed."""
    rig.start("r", input=1)
    until(lambda: len(hands.tasks) == 1, what="the attempt handed over")
    until(lambda: rig.rows(OPEN) and not rig.rows(OUTBOX), what="a row of its own")


def test_a_slow_attempt_holds_up_nothing(rig: Rig) -> None:
    """Protocol 13: its row takes the place of the outbox row, and goes with its end."""
    hands = Hands()
    with_hands(rig, hands)
    slow(rig, hands)
    assert rig.rows(OPEN)[0]["token"] is not None
    hands.finish(hands.tasks[0])
    rig.until_status("completed", "r")
    rig.check()
    assert rig.rows(OPEN) == []


def test_many_batches_behind_a_slow_attempt(rig: Rig) -> None:
    """Protocol 11, 13, R9: intake does not rest for ever because one attempt here takes its time."""
    hands = Hands(slots=2)
    config = rig.fast(unconfirmed_limit=3, sync_row_s=3600.0)
    rig.coordinator(config, local=hands)
    rig.worker()
    rig.start("r", input=1)
    until(lambda: len(hands.tasks) == 1, what="the attempt handed over")
    ids = [run_id for run_id in (f"n{n}" for n in range(60)) if rig.home(run_id) == rig.home("r")][:12]
    rig.start(*ids)
    rig.until_status("completed", *ids)
    hands.finish(hands.tasks[0])
    rig.until_status("completed", "r")
    rig.check()


@pytest.mark.parametrize("long", [True, False])
def test_its_owner_dies(rig: Rig, long: bool) -> None:
    """R5, protocol 13: the next owner sends it by Kafka, whether it had a row of its own or not."""
    hands = Hands()
    running = with_hands(rig, hands)
    if long:
        slow(rig, hands)
    else:
        rig.start("r", input=1)
        until(lambda: len(hands.tasks) == 1, what="the attempt handed over")
    crash(running)
    worker = rig.worker()
    successor = rig.coordinator()
    rig.until_status("completed", "r")
    rig.check()
    assert [fence(task) for task in worker.tasks] == [fence(hands.tasks[0])]
    assert successor.count("ductor_redrives") >= 1
    assert rig.rows(OPEN) == []


def test_the_next_owner_dies_while_it_redrives(rig: Rig) -> None:
    """R5: at no moment is the attempt neither in the outbox nor in a row of its own."""
    hands = Hands()
    running = with_hands(rig, hands)
    slow(rig, hands)
    crash(running)

    def mute(coordinator: Any) -> None:
        coordinator.log.produce = lambda records, acknowledged: None

    second = rig.coordinator(prepare=mute)
    until(lambda: rig.rows(OPEN) == [], what="its row gone")
    crash(second)
    rig.coordinator()
    worker = rig.worker()
    rig.until_status("completed", "r")
    rig.check()
    assert [fence(task) for task in worker.tasks] == [fence(hands.tasks[0])]


@pytest.mark.parametrize("long", [True, False])
def test_its_partition_is_given_away(rig: Rig, long: bool) -> None:
    """Protocol 13: a graceful end redrives nothing that still runs; its result goes by the topic."""
    hands = Hands()
    running = with_hands(rig, hands)
    if long:
        slow(rig, hands)
    else:
        rig.start("r", input=1)
        until(lambda: len(hands.tasks) == 1, what="the attempt handed over")
    running.stop()
    assert hands.diverted == {b"r"}
    assert rig.rows(OPEN) == [{"token": None}]
    worker = rig.worker()
    successor = rig.coordinator()
    rig.send(rig.topics.attempt_results, "r", hands.finish(hands.tasks[0]))
    rig.until_status("completed", "r")
    rig.check()
    assert worker.tasks == []
    assert successor.count("ductor_redrives") == 0


@pytest.mark.moves("ductor_ownership_lost")
def test_a_fence_gives_reserved_slots_back(rig: Rig) -> None:
    """Protocol 17: a commit that did not land leaves no slot reserved and no coroutine ahead of its version."""
    hands = Hands(slots=10)
    running = with_hands(rig, hands)
    store = PostgresStore(rig.database)
    store.namespace(rig.namespace, cluster_id(rig.admin), rig.partitions)
    store.take(rig.home("r"), str(uuid.uuid4()))
    store.close()
    rig.start("r", input=1)
    until(lambda: len(hands.tasks) == 1, what="the attempt handed over in the end")
    assert running.count("ductor_ownership_lost") == 1
    assert hands.free == 9
    hands.finish(hands.tasks[0])
    rig.until_status("completed", "r")
    rig.check()


def test_partitions_go_while_a_batch_is_taken(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """R5: a rebalance within the poll takes away what was collected before it; nothing is lost, no turn fails."""
    armed = threading.Event()
    moves: list[frozenset[int]] = []

    def prepare(coordinator: Any) -> None:
        poll = coordinator.log.poll

        def wrapped(timeout: float, limit: int) -> Any:
            records = poll(timeout, limit)
            owned = frozenset(coordinator.ownership.owned)
            if armed.is_set() and timeout == 0 and owned and len(moves) < 3:
                moves.append(owned)
                coordinator.ownership.revoked(owned)
                coordinator.ownership.assigned(owned)
                return []
            return records

        coordinator.log.poll = wrapped

    running = rig.coordinator(prepare=prepare)
    rig.worker()
    ids = [f"r{n}" for n in range(6)]
    rig.start(*ids, workflow="nap", input=700)
    rig.until_status("running", *ids)
    armed.set()
    rig.until_status("completed", *ids)
    rig.check()
    assert len(moves) == 3
    assert "turn failed" not in caplog.text
    assert running.count("ductor_takeovers") == 2 + sum(map(len, moves))
