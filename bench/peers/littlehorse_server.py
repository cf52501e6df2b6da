# mypy: disable-error-code="import-not-found, import-untyped"
# (the peer is installed in an environment of its own)
"""LittleHorse's server on a Kafka of its own, with 4 partitions and the limit of threads per run lifted."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import CDLL
from pathlib import Path
from typing import Any

import grpc
import littlehorse
from littlehorse.config import LHConfig
from littlehorse.model import TaskDefId, WfSpecId
from littlehorse.workflow import Workflow

from bench.peers.common import Place, free_port, home, server, service, wait_until
from bench.peers.options import Options

JAVA = "BENCH_JAVA"
"""Names the program ``java``, 25 or newer."""
_THREADS = 1_010
"""Of one run: the server's own limit of 65 is below the fan-out."""
_READY_WITHIN_S = 120.0
_CLONE_NEWNET, _SIOCSIFFLAGS, _UP_AND_RUNNING = 0x4000_0000, 0x8914, 0x41


def config_for(address: str) -> LHConfig:
    """The SDK's configuration."""
    host, port = address.split(":")
    config = LHConfig()
    config.load({"LHC_API_HOST": host, "LHC_API_PORT": port, "LHW_NUM_WORKER_THREADS": "256"})
    return config


def _own_network() -> None:
    """As root, enter a network of our own with only loopback: the server listens on every address."""
    if os.geteuid() == 0 and not CDLL(None).unshare(_CLONE_NEWNET):
        with socket.socket() as loopback:
            fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def _answers(call: Callable[..., object], *arguments: object) -> bool:
    try:
        call(*arguments)
        return True
    except (grpc.RpcError, OSError):
        return False


def _register(address: str, tasks: Mapping[str, Any], workflows: Mapping[str, Any]) -> None:
    config = config_for(address)
    for name, task in tasks.items():
        littlehorse.create_task_def(task, name, config)
    stub = config.stub()
    for name in tasks:
        wait_until(lambda name=name: _answers(stub.GetTaskDef, TaskDefId(name=name)), "the tasks")  # type: ignore[misc]
    for name, entry in workflows.items():
        littlehorse.create_workflow_spec(Workflow(name, entry), config)
    for name in workflows:
        wait_until(lambda name=name: _answers(stub.GetWfSpec, WfSpecId(name=name)), "the workflows")  # type: ignore[misc]


def _settings(work: Path, bootstrap: str, ports: tuple[int, int, int], options: Options) -> dict[str, str]:
    api, internal, health = map(str, ports)
    return {
        "LHS_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "LHS_INSTANCE_ID": "1",
        "LHS_REPLICATION_FACTOR": "1",
        "LHS_CLUSTER_PARTITIONS": "4",
        "LHS_STATE_DIR": str(work / "state"),
        "LHS_LISTENERS": f"PLAIN:{api}",
        "LHS_ADVERTISED_LISTENERS": f"PLAIN://127.0.0.1:{api}",
        "LHS_INTERNAL_BIND_PORT": internal,
        "LHS_INTERNAL_ADVERTISED_HOST": "127.0.0.1",
        "LHS_HEALTH_SERVICE_PORT": health,
        "LHS_STREAMS_SESSION_TIMEOUT": "20000",
        "LHS_X_MAX_THREAD_RUNS_PER_WF_RUN": str(_THREADS),
        **{key: value for key, value in options.words().items() if key.startswith("LHS_")},
    }


@contextmanager
def running(
    work: Path, options: Options, program: tuple[Mapping[str, Any], Mapping[str, Any]], worker: Sequence[str]
) -> Iterator[Place]:
    """Kafka, the server with that program (tasks, workflows), and workers by that command line."""
    _own_network()
    flags = ["flush"] if "flush" in options.words() else []
    with ExitStack() as stack:
        pid, bootstrap = stack.enter_context(server("kafka", work, *flags))
        ports = (free_port(), free_port(), free_port())
        settings = _settings(work, bootstrap, ports, options)
        java = [os.environ[JAVA], "-XX:+UseG1GC", "-Xmx4g", "-Dlog4j.shutdownHookEnabled=false"]
        command = [*java, "-cp", f"{home() / 'littlehorse' / 'libs'}/*", "io.littlehorse.App"]
        horse = stack.enter_context(service(command, work / "littlehorse.log", environment=settings))
        healthy = f"http://127.0.0.1:{ports[2]}/readiness"
        wait_until(
            lambda: _answers(lambda: urllib.request.urlopen(healthy, timeout=2).close()), "LittleHorse", _READY_WITHIN_S
        )
        address = f"127.0.0.1:{ports[0]}"
        wait_until(lambda: _answers(_register, address, *program), "the server's metadata", _READY_WITHIN_S)
        workers = []
        for number in range(options.workers):
            log = work / f"worker{number}.log"
            # On SIGTERM the SDK's worker first sleeps until its next heartbeat, up to 60 s.
            one = stack.enter_context(service([*worker, address], log, stop=signal.SIGKILL))
            workers.append(one.pid)
            wait_until(lambda log=log: "ready" in log.read_text(), "the worker")  # type: ignore[misc]
        yield Place({"kafka": [pid], "littlehorse": [horse.pid], "workers": workers}, address)
