"""The thread from which all servers are forked.

Linux sends the death signal of a child when the thread that forked it ends, not when the process
does. A server started by a short-lived worker thread would die with that thread. So one daemon
thread, which never ends before the process, forks for everybody.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ChildSpec:
    """A child process: its ``argv``, working folder, environment and open file descriptors.

    ``inherited`` are further descriptors that it keeps, under their numbers.
    """

    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    output: int
    stdin: int = subprocess.DEVNULL
    inherited: Sequence[int] = ()


_Job = tuple[ChildSpec, "Future[subprocess.Popen[bytes]]"]
_guard = threading.Lock()
_queues: dict[int, queue.SimpleQueue[_Job]] = {}


def fork_child(spec: ChildSpec) -> subprocess.Popen[bytes]:
    """Start a child that lives as long as this process, whatever thread calls.

    Raises:
        OSError: it cannot be started.
    """
    outcome: Future[subprocess.Popen[bytes]] = Future()
    _queue().put((spec, outcome))
    return outcome.result()


def _queue() -> queue.SimpleQueue[_Job]:
    with _guard:
        # By pid: a fork of this process has a copy of the queue, but not the thread.
        jobs = _queues.get(os.getpid())
        if jobs is None:
            jobs = _queues[os.getpid()] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(jobs,), name="ductor-dev-forker", daemon=True).start()
        return jobs


def _serve(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        spec, outcome = jobs.get()
        try:
            outcome.set_result(_popen(spec))
        except BaseException as error:  # noqa: BLE001 - whoever asked is told; all others still have to be served
            outcome.set_exception(error)


def _popen(spec: ChildSpec) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(spec.argv),
        cwd=spec.folder,
        stdin=spec.stdin,
        stdout=spec.output,
        stderr=subprocess.STDOUT,
        env=dict(spec.environment),
        pass_fds=spec.inherited,
        # Ctrl-C in a terminal goes to the whole foreground group: servers must outlive what uses them.
        start_new_session=True,
    )
