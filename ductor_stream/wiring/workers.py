"""A worker out of an app and its settings. It needs Kafka and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from ductor_stream.app import App
from ductor_stream.config import Settings
from ductor_stream.connectors.binding import runnable_steps
from ductor_stream.errors import TransientError
from ductor_stream.kafka.task_log import KafkaTaskLog, TaskLogConfig
from ductor_stream.kafka.topics import AdminConfig, cluster_id
from ductor_stream.protocol.registry import ConfluentRegistry
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Service
from ductor_stream.worker.clock import MachineClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.service import WorkerConfig, WorkerService
from ductor_stream.worker.vigil import ExecutorConfig

ANSWER_WITHIN_S = 5.0
"""How long a broker may take for the question that a worker begins with."""


def worker_name() -> str:
    """How this process calls itself in its reports: for people only."""
    return f"{socket.gethostname()}:{os.getpid()}"


def codec_for(settings: Settings) -> WorkerCodec:
    """A codec of its own for each thread that reads."""
    registry = ConfluentRegistry(settings.schema_registry) if settings.schema_registry else None
    return WorkerCodec(settings.encoding, registry)


def open_worker(
    app: App, settings: Settings, metrics: Metrics, queues: Sequence[str], concurrency: int
) -> tuple[WorkerService, Executor, KafkaTaskLog]:
    """A worker that may run, what runs its attempts, and its log, which it closes at its end.

    Raises InvalidConfig, InvalidDefinition.
    """
    clock = MachineClock()
    topics = settings.topics(app.namespace)
    steps = runnable_steps(app, settings)
    log = KafkaTaskLog(
        TaskLogConfig(
            bootstrap=settings.need_kafka(),
            topics=topics,
            options=settings.kafka,
            instance_id=settings.kafka_instance_id,
            protocol=settings.kafka_protocol,
        )
    )
    executor = Executor(ExecutorConfig(steps, worker_name(), clock, metrics, codec_for(settings)))
    config = WorkerConfig(
        queues=queues,
        concurrency=concurrency,
        topics=topics,
        clock=clock,
        metrics=metrics,
        codec=lambda: codec_for(settings),
    )
    return WorkerService(config, log, executor), executor, log


def worker_service(app: App, settings: Settings, metrics: Metrics, queues: Sequence[str], concurrency: int) -> Service:
    """The same, to be run beside other services. Raises InvalidConfig, and LogUnavailable where no broker answers.

    A worker that runs waits for Kafka without an end: one that has never reached it has a wrong address, and says so.
    """
    runnable_steps(app, settings)  # what is wrong with the app is told first
    topics, bootstrap = settings.topics(app.namespace), settings.need_kafka()
    cluster_id(AdminConfig(bootstrap=bootstrap, topics=topics, options=settings.kafka, timeout=ANSWER_WITHIN_S))
    worker, *_ = open_worker(app, settings, metrics, queues, concurrency)
    return Service("worker", lambda: run_worker(worker), worker.stop, worker.problems)


def run_worker(worker: WorkerService) -> None:
    """Work until stopped. Raises TransientError where only a new process helps, so that the exit status says so."""
    if worker.run() == "exhausted":
        raise TransientError("too many slots are lost to steps that do not end after their timeout: start it anew")
