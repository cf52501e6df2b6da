"""Coordinator and worker in one process: SyncMatch, with Kafka as the way for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from ductor_stream.app import App
from ductor_stream.config import Settings
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.coordinators import coordinator_service
from ductor_stream.wiring.group import Service
from ductor_stream.wiring.workers import codec_for, open_worker, run_worker
from ductor_stream.worker.local import LocalWorker
from ductor_stream.worker.service import WorkerService


class _Local(LocalWorker):
    """Takes nothing before the worker has opened its resources, and nothing once it drains."""

    _worker: WorkerService | None = None
    _closed = False

    def opened_by(self, worker: WorkerService) -> None:
        self._worker = worker

    def close(self) -> None:
        self._closed = True

    def reserve(self, queue: str, step: str) -> bool:
        if self._worker is not None:
            if "the worker is starting" in self._worker.problems():
                return False
            self._worker = None  # opened once, it stays so until it drains
        return not self._closed and super().reserve(queue, step)


def serving_services(
    app: App, settings: Settings, metrics: Metrics, queues: Sequence[str], concurrency: int
) -> list[Service]:
    """A coordinator, and a worker for these queues (none where there are none). Raises as their own openers do."""
    if not queues:
        return [coordinator_service(app, settings, metrics)]
    worker, executor, log = open_worker(app, settings, metrics, queues, concurrency)
    outlet = worker.outlet
    local = _Local(executor, worker.slots, codec_for(settings), lambda record: outlet.send(record, lambda _: None))
    local.opened_by(worker)

    def stop() -> None:
        local.close()
        worker.stop()

    def run() -> None:
        try:
            run_worker(worker)
        finally:
            local.close()

    try:
        coordinator = coordinator_service(app, settings, metrics, local)
    except BaseException:
        log.close()
        raise
    return [coordinator, Service("worker", run, stop, worker.problems)]


def serve_build(
    apps: Sequence[App], settings: Settings, queues: Mapping[str, Sequence[str]], concurrency: int
) -> Callable[[CollectorRegistry], list[Service]]:
    """What builds the services of several apps; ``queues`` are those to execute, by the app's own name."""

    def build(registry: CollectorRegistry) -> list[Service]:
        found: list[Service] = []
        for app in apps:
            metrics = Metrics(registry, app=settings.topics(app.namespace).namespace)
            found += serving_services(app, settings, metrics, queues[app.namespace], concurrency)
        return found

    return build
