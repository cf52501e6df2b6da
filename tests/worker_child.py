"""A worker process for tests: ``python worker_child.py CONFIG``, where CONFIG is JSON.

Each run of a step appends a line to ``folder/ran``; steps wait for files in ``folder`` that the test makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from ductor_stream import App, current_attempt
from ductor_stream.kafka.task_log import KafkaTaskLog, TaskLogConfig
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import configure
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.clock import MachineClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.service import WorkerConfig, WorkerService
from ductor_stream.worker.vigil import ExecutorConfig


def steps(folder: Path, name: str) -> App:
    app = App("t")

    def note(what: object) -> None:
        line = f"{name} {what}\n".encode()
        handle = os.open(folder / "ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line)
        os.close(handle)

    @app.step
    async def quick(n: int) -> int:
        note(n)
        return n

    @app.step
    def gated(gate: str) -> str:
        """Waits, in a thread, until the test makes the file."""
        note(gate)
        waiting = threading.Event()
        while not (folder / gate).exists():
            waiting.wait(0.02)
        return f"{name} {gate}"

    @app.step
    async def stubborn() -> None:
        note("stubborn")
        await asyncio.sleep(3600)

    @app.step
    def stoppable() -> str:
        note("stoppable")
        attempt = current_attempt()
        attempt.wait_for_stop(60)
        attempt.raise_if_stopped()
        return "never asked"

    @app.step
    async def deadly() -> None:
        note("deadly")
        os._exit(7)

    return app


def main(config: dict[str, object]) -> int:
    configure("console", "INFO")
    name, namespace = str(config["name"]), str(config["namespace"])
    topics = Topics(namespace)
    log = KafkaTaskLog(
        TaskLogConfig(
            bootstrap=str(config["bootstrap"]),
            topics=topics,
            protocol=config.get("protocol", "auto"),  # type: ignore[arg-type]
            options=config.get("kafka", {}),  # type: ignore[arg-type]
            instance_id=config.get("instance"),  # type: ignore[arg-type]
        )
    )
    metrics, clock = Metrics(), MachineClock()
    app = steps(Path(str(config["folder"])), name)
    executor = Executor(ExecutorConfig(app.steps, name, clock, metrics, WorkerCodec()))
    service = WorkerService(
        WorkerConfig(
            queues=["default"],
            concurrency=int(str(config["concurrency"])),
            topics=topics,
            clock=clock,
            metrics=metrics,
            grace_s=float(str(config.get("grace_s", 10))),
        ),
        log,
        executor,
    )
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    said = Path(str(config["folder"])) / f"{name}.problems"

    def say_problems() -> None:
        waiting = threading.Event()
        while True:
            fresh = said.with_suffix(".new")
            fresh.write_text("\n".join(service.problems()))
            fresh.rename(said)
            waiting.wait(0.05)

    threading.Thread(target=say_problems, daemon=True).start()
    ending = service.run()
    print(f"ended: {ending}", flush=True)
    return 0 if ending == "stopped" else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
