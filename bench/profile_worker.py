"""What an attempt costs a worker: ``python -m bench.profile_worker [--mode sync|kafka] [--tool threads|cprofile]``.

No-op async steps and nothing else. *sync* hands batches over as a coordinator does by SyncMatch; *kafka* runs the
service on a topic that was filled before. The figure is CPU of this process per attempt, so that other load on the
machine disturbs it little: only ratios within a session mean something. ``threads`` says which thread spent it.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from confluent_kafka import Producer

from bench.app import app
from ductor_stream.config import Settings
from ductor_stream.dev import EmbeddedKafka
from ductor_stream.engine.ids import idempotency_key
from ductor_stream.kafka.topics import AdminConfig, create_topics, plan
from ductor_stream.protocol.headers import wire_headers
from ductor_stream.protocol.times import rfc3339
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.workers import open_worker
from ductor_stream.worker.clock import MachineClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.local import LocalWorker
from ductor_stream.worker.slots import Slots
from ductor_stream.worker.vigil import ExecutorConfig

QUEUE, STEP, PARTITIONS = "default", "noop", 4
_TICK = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.02
_STUCK_S = 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile_worker", description=__doc__)
    parser.add_argument("--mode", choices=["sync", "kafka"], default="sync")
    parser.add_argument("--attempts", type=int, default=30_000, help="in each window")
    parser.add_argument("--batch", type=int, default=500, help="how many a coordinator hands over at once (sync)")
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=3, help="windows; the median counts")
    parser.add_argument("--tool", choices=["threads", "cprofile"], default="threads")
    parser.add_argument("--top", type=int, default=45, help="functions to show")
    options = parser.parse_args(arguments)
    profiles = _profiled_threads() if options.tool == "cprofile" else []
    windows = (_sync if options.mode == "sync" else _kafka)(options)
    for window in windows:
        _print(window)
    costs = [window.cost_us for window in windows]
    print(f"{options.mode}: {median(costs):.1f} µs of CPU per attempt ({min(costs):.1f} to {max(costs):.1f})")
    if profiles:
        _print_functions(profiles, sum(window.attempts for window in windows), options.top)


# -- windows --------------------------------------------------------------------------------


@dataclass
class Window:
    """A stretch of time in which so many attempts were run, and what each thread spent on them."""

    attempts: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    threads: dict[str, float] = field(default_factory=dict)

    @property
    def cost_us(self) -> float:
        """CPU per attempt."""
        return self.cpu_s / max(self.attempts, 1) * 1e6


@contextmanager
def _window(windows: list[Window]) -> Iterator[Window]:
    window, cpu, began, spent = Window(), time.process_time(), time.perf_counter(), _spent()
    yield window
    window.cpu_s, window.seconds = time.process_time() - cpu, time.perf_counter() - began
    window.threads = {name: each - spent.get(name, 0.0) for name, each in _spent().items()}
    windows.append(window)


def _spent() -> dict[str, float]:
    """CPU seconds by thread: Python's by their name, librdkafka's by theirs."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        command, _, rest = (task / "stat").read_text().rpartition(")")
        numbers = rest.split()
        name = names.get(int(task.name)) or command.partition("(")[2]
        found[name] = found.get(name, 0.0) + (int(numbers[11]) + int(numbers[12])) / _TICK
    return found


def _print(window: Window) -> None:
    parts = sorted(window.threads.items(), key=lambda pair: -pair[1])
    told = ", ".join(f"{name} {spent / window.attempts * 1e6:.1f}" for name, spent in parts if spent)
    print(f"  {window.attempts / window.seconds:,.0f}/s, {window.cost_us:.1f} µs: {told}")


# -- SyncMatch ------------------------------------------------------------------------------


def _sync(options: argparse.Namespace) -> list[Window]:
    metrics, codec = Metrics(), WorkerCodec()
    executor = Executor(ExecutorConfig(app.steps, "bench", MachineClock(), metrics, codec))
    worker = LocalWorker(executor, {QUEUE: Slots(options.concurrency)}, WorkerCodec(), lambda record: None)
    executor.open()
    windows: list[Window] = []
    try:
        for repeat in range(options.repeat + 1):  # the first one warms up
            rounds = _rounds(options, str(repeat))
            with _window(windows) as window:
                for records in rounds:
                    _hand_over(worker, records)
                    window.attempts += len(records)
        return windows[1:]
    finally:
        executor.close()


def _rounds(options: argparse.Namespace, name: str) -> list[list[tuple[bytes, bytes]]]:
    size = options.batch
    return [[_task(f"{name}-{first + number}") for number in range(size)] for first in range(0, options.attempts, size)]


def _hand_over(worker: LocalWorker, records: list[tuple[bytes, bytes]]) -> None:
    """A coordinator's round: reserve, (commit), run, and take what has come of it."""
    for _ in records:
        assert worker.reserve(QUEUE, STEP)
    headers = wire_headers()
    worker.run_all([(value, key, headers) for key, value in records])
    missing = len(records)
    while missing > 0:
        # On a busy machine there are heartbeats among them.
        missing -= sum(b'"attempt.finished"' in value for _, value in worker.results(1.0))


def _task(run_id: str) -> tuple[bytes, bytes]:
    """Key and value of a task as a coordinator writes it."""
    body = {
        "type": "task",
        "run_id": run_id,
        "execution": 1,
        "node_id": "3",
        "generation": 1,
        "attempt": 1,
        "step": STEP,
        "input": [7],
        "idempotency_key": idempotency_key("bench", run_id, 1, "3"),
        "dispatched_at": rfc3339(time.time_ns() // 1_000_000),
        "start_to_close_ms": 600_000,
        "schedule_to_start_ms": None,
        "deadline_at": None,
        "heartbeat_timeout_ms": 10_000,
        "heartbeat_details": None,
        "requires": [],
        "results_topic": "ductor.bench.attempt-results",
    }
    return run_id.encode(), msgspec.json.encode(body)


# -- Kafka ----------------------------------------------------------------------------------


def _kafka(options: argparse.Namespace) -> list[Window]:
    with tempfile.TemporaryDirectory(prefix="ductor-bench-") as folder:
        kafka = EmbeddedKafka(Path(folder) / "kafka", fast_start=False)
        kafka.start()
        try:
            return _served(options, kafka.bootstrap)
        finally:
            kafka.stop()


def _served(options: argparse.Namespace, bootstrap: str) -> list[Window]:
    settings = Settings(kafka_bootstrap=bootstrap)
    topics = settings.topics(app.namespace)
    create_topics(AdminConfig(bootstrap=bootstrap, topics=topics), plan(topics, [QUEUE], partitions=PARTITIONS))
    windows: list[Window] = []
    for repeat in range(options.repeat + 1):
        # A worker for each window: it starts with a topic that is full, and joins before the window begins.
        _fill(bootstrap, topics.tasks(QUEUE), options.attempts, str(repeat))
        metrics = Metrics()
        worker, _, _ = open_worker(app, settings, metrics, [QUEUE], options.concurrency)
        thread = threading.Thread(target=worker.run, name="service")
        thread.start()
        try:
            first = options.attempts // 10
            _until(lambda: _done(metrics) >= first)  # noqa: B023 (called within this turn of the loop only)
            with _window(windows) as window:
                began = _done(metrics)
                _until(lambda: _done(metrics) >= options.attempts)  # noqa: B023 (as above)
                window.attempts = int(_done(metrics) - began)
        finally:
            worker.stop()
            thread.join()
    return windows[1:]


def _fill(bootstrap: str, topic: str, count: int, name: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": count + 1})
    for number in range(count):
        key, value = _task(f"{name}-{number}")
        headers: Any = wire_headers()
        producer.produce(topic, value, key, headers=headers, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def _done(metrics: Metrics) -> float:
    found: float = metrics.worker_attempts[QUEUE, "completed"]._value.get()
    return found


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STUCK_S
    while not condition():
        assert time.monotonic() < deadline, "the worker does not get on"
        time.sleep(_LOOK_S)


# -- functions ------------------------------------------------------------------------------


def _profiled_threads() -> list[cProfile.Profile]:
    """Have every thread that is started from now on, and this one, under cProfile; the profiles come to the list."""
    profiles: list[cProfile.Profile] = []
    run = threading.Thread.run

    def watched(self: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        profiles.append(profile)
        profile.runcall(run, self)

    threading.Thread.run = watched  # type: ignore[method-assign]
    own = cProfile.Profile(time.thread_time)
    profiles.append(own)
    own.enable()
    return profiles


def _print_functions(profiles: list[cProfile.Profile], attempts: int, top: int) -> None:
    """Own CPU per attempt by function. The warming window is in it too, so that the figures are somewhat high."""
    profiles[0].disable()
    stats: Any = pstats.Stats(*profiles, stream=sys.stdout)
    found = [(own, calls, place) for place, (_, calls, own, _, _) in stats.stats.items()]
    for own, calls, (file, line, name) in sorted(found, reverse=True)[:top]:
        place = "/".join(Path(file).parts[-2:])
        print(f"{own / attempts * 1e6:8.2f} µs {calls / attempts:7.2f} calls  {place}:{line} {name}")


if __name__ == "__main__":
    main()
