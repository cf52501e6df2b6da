"""Three real Kafka brokers: KRaft, combined roles, replication 3, two in sync; each behind gates of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from chaos.network import Network
from ductor_stream.dev.broker import new_cluster_id
from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.ports import pick_port
from ductor_stream.kafka.options import Admin, client_logger

COUNT = 3
READY_WITHIN_S = 120.0
_LISTENERS = ("MEMBERS", "BROKERS", "CONTROLLER")
"""Those behind a gate: for clients, for the other brokers, for the quorum. PLAINTEXT, the observers' own, has none."""
_SHARED = {
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", *_LISTENERS)),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # A frozen follower holds acknowledgements back for so long (default: 30 s).
    "replica.lag.time.max.ms": "6000",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    # Retention is a fault here: it must bite within seconds.
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "2097152",
}


def name(number: int) -> str:
    """What broker ``number`` (1 to 3) is called."""
    return f"kafka-{number}"


class Brokers:
    """The cluster. ``bootstrap`` is the members' address, through the gates; ``direct`` is the observers'."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._network = network
        self._numbers = range(1, COUNT + 1)
        inner = {n: {each: pick_port() for each in ("PLAINTEXT", *_LISTENERS)} for n in self._numbers}
        outer = {n: {each: network.gate(name(n), inner[n][each]) for each in _LISTENERS} for n in self._numbers}
        voters = ",".join(f"{n}@127.0.0.1:{outer[n]['CONTROLLER']}" for n in self._numbers)
        cluster_id = new_cluster_id()
        self._servers = {
            n: EmbeddedKafka(
                folder / name(n),
                port=inner[n]["PLAINTEXT"],
                extra={**_SHARED, **_addresses(n, inner[n], outer[n]), "controller.quorum.voters": voters},
                heap="512m",
                cluster_id=cluster_id,
            )
            for n in self._numbers
        }
        self.bootstrap = ",".join(f"127.0.0.1:{outer[n]['MEMBERS']}" for n in self._numbers)
        self.direct = ",".join(f"127.0.0.1:{inner[n]['PLAINTEXT']}" for n in self._numbers)

    def start(self) -> None:
        """Start all three, at the same time: none is ready before it has a quorum."""
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(self._start, self._numbers))
        self.until(lambda: len(self.alive()) == COUNT, "three brokers")

    def _start(self, number: int) -> None:
        self._servers[number].start()
        self._note(number)

    def _note(self, number: int) -> None:
        pid = self._servers[number].pid
        assert pid is not None
        self._network.register(name(number), pid)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._servers[number].kill()

    def restart(self, *numbers: int) -> None:
        """In good order if they run, all at the same time; returns when they answer."""
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(self._restart, numbers))

    def _restart(self, number: int) -> None:
        self._servers[number].restart()
        self._note(number)

    def freeze(self, number: int) -> None:
        """SIGSTOP."""
        self._signal(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        pid = self._servers[number].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    @cached_property
    def admin(self) -> Admin:
        """An observer's client."""
        return Admin({"bootstrap.servers": self.direct, "socket.timeout.ms": 10_000}, logger=client_logger)

    def watermarks(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one after its last. Raises KafkaException."""
        own = {"bootstrap.servers": self.direct, "group.id": "chaos-watermarks"}  # never joined
        consumer = Consumer(own, logger=client_logger)
        try:
            partitions = consumer.list_topics(topic, 15).topics[topic].partitions
            return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 15) for p in partitions}
        finally:
            consumer.close()

    def alive(self) -> set[int]:
        """The brokers that the cluster knows as up."""
        try:
            return set(self.admin.list_topics(timeout=5).brokers)
        except Exception:  # noqa: BLE001 - whatever the driver says: nobody answers
            return set()

    def healthy(self) -> bool:
        """Whether all are up and every partition has all its replicas in sync."""
        try:
            found = self.admin.list_topics(timeout=5)
        except Exception:  # noqa: BLE001 - as above
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == COUNT and all(len(p.isrs) == len(p.replicas) and p.leader >= 0 for p in partitions)

    def until_healthy(self) -> None:
        """Wait for that."""
        self.until(self.healthy, "all replicas in sync")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait. Raises TimeoutError."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka: no {what} within {READY_WITHIN_S:.0f} s")
            time.sleep(0.2)

    def stop(self) -> None:
        """End all, without a stop in good order: nobody needs their data."""
        for number, server in self._servers.items():
            self.thaw(number)
            server.kill()
            server.stop()


def _addresses(number: int, inner: dict[str, int], outer: dict[str, int]) -> dict[str, str]:
    advertised = {"PLAINTEXT": inner["PLAINTEXT"], **outer}
    return {
        "node.id": str(number),
        "listeners": ",".join(f"{each}://127.0.0.1:{port}" for each, port in inner.items()),
        "advertised.listeners": ",".join(f"{each}://127.0.0.1:{port}" for each, port in advertised.items()),
    }
