"""A server as a child process that does not outlive its parent.

On Linux the kernel signals the child when its parent dies, however that happens (see trampoline.py).
That signal is tied to the *thread* that forked: servers are therefore forked from one thread that
lives as long as the process (forker.py), whoever calls ``start``. On macOS there is no such signal: a server
orphaned by ``kill -9`` is found by its pid file and ended at the next start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ductor_stream.dev.forker import ChildSpec, fork_child
from ductor_stream.errors import DevStackError

_TRAMPOLINE = Path(__file__).with_name("trampoline.py")
_children: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []
"""All that may still run, each with the signal that ends it."""
_noting = threading.Lock()
"""Servers are started from several threads; ``end_everything``, in a signal handler, takes no lock and reads only."""
_ending = False
_TAIL_LINES = 15
_POLL_S = 0.005
"""How often a condition is looked at: a start of Postgres takes 30 ms, one of Kafka 700 ms."""


@dataclass(frozen=True)
class ServerSpec:
    """How one server is run.

    ``stop_signal`` also reaches it when we die. ``user`` is (uid, gid) to give root up for, or None to stay who we are.
    """

    name: str
    command: Sequence[str]
    folder: Path
    log: Path
    stop_signal: signal.Signals
    user: tuple[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: int = subprocess.DEVNULL
    inherited: Sequence[int] = ()


class ServerProcess:
    """A running server; made by ``launch``."""

    def __init__(self, spec: ServerSpec, child: subprocess.Popen[bytes]) -> None:
        self._spec = spec
        self._child = child
        # Also when the caller forgets to stop it, at garbage collection or at exit.
        self._finalizer = weakref.finalize(self, _end, child, spec.stop_signal, 10.0, os.getpid())

    @property
    def pid(self) -> int:
        """The pid of the server itself (not of a shell or a launcher)."""
        return self._child.pid

    @property
    def ending(self) -> str:
        """How the server ended, in words: ``killed by signal 9``, ``exit status 1``."""
        code = self._child.returncode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"

    @property
    def exit_status(self) -> int | None:
        """The server's exit status (negative: the signal that ended it), or None while it runs."""
        return self._child.returncode

    def alive(self) -> bool:
        """Whether the server is still running."""
        return self._child.poll() is None

    def wait_until(self, ready: Callable[[], bool], within_s: float) -> None:
        """Return once ``ready`` is true.

        Raises:
            DevStackError: the server ended, or time is up; the message has the last lines of its log.
        """
        deadline = time.monotonic() + within_s
        while not ready():
            if not self.alive():
                raise DevStackError(f"{self._spec.name} ended at its start ({self.ending}){self._explanation()}")
            if time.monotonic() > deadline:
                raise DevStackError(f"{self._spec.name} was not ready after {within_s:g} s{self._explanation()}")
            time.sleep(_POLL_S)

    def end(self, number: signal.Signals, within_s: float) -> None:
        """Send ``number``, wait for the end, and use SIGKILL when it has not come after ``within_s``."""
        self._finalizer.detach()
        _end(self._child, number, within_s, os.getpid())

    def _explanation(self) -> str:
        return f"; log: {self._spec.log}; its last lines:\n{log_tail(self._spec.log)}"


def launch(spec: ServerSpec) -> ServerProcess:
    """Start the server of ``spec``; its output goes to ``spec.log``, that of the start before to ``….1``.

    Raises:
        DevStackError: the process cannot be made.
    """
    if spec.log.exists():
        spec.log.replace(spec.log.with_name(spec.log.name + ".1"))
    return ServerProcess(spec, _fork(spec))


def run_once(spec: ServerSpec) -> int:
    """Run the command of ``spec`` to its end, under the conditions of a server; returns its exit status."""
    child = _fork(spec)
    try:
        return child.wait()
    except BaseException:  # Ctrl-C
        child.kill()
        child.wait()
        raise


def end_everything(within_s: float) -> None:
    """End whatever this process has started, and let it start nothing more: to be called when it is about to exit.

    What has not ended ``within_s`` seconds after its own signal is killed. Safe in a signal handler, whatever the
    process is doing in its other threads.
    """
    global _ending
    _ending = True
    children = [(child, number) for child, number in list(_children) if child.poll() is None]
    for child, number in children:
        child.send_signal(number)
    deadline = time.monotonic() + within_s
    for child, _ in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def log_tail(path: Path) -> str:
    """The last lines of a log file (without Java's stack frames), or a word on why there are none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error.strerror})"
    told = [line for line in lines if not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(told[-_TAIL_LINES:]) or "(the log is empty)"


def end_orphan(pid: int, marker: str, number: signal.Signals, within_s: float = 10.0) -> None:
    """End a server that is not our child any more: its parent was killed, and it is on its way out or left over.

    A pid that by now belongs to something else (told by ``marker`` in its command line) is left alone.
    """
    if marker not in command_line(pid):
        return
    incarnation = _incarnation(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        deadline = time.monotonic() + within_s
        # Not until the command line is gone: that is empty a moment before the ports are closed.
        while _incarnation(pid) == incarnation:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                deadline += within_s
            time.sleep(_POLL_S)


def _incarnation(pid: int) -> str:
    """What tells a process from the next one with its pid; empty if there is none, or a zombie."""
    if sys.platform != "linux":
        return command_line(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    state, started_at = fields[0], fields[19]
    return "" if state in "ZX" else started_at


def command_line(pid: int) -> str:
    """The command line of a process; empty if there is no such process or it is a zombie."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    found = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout


def _fork(spec: ServerSpec) -> subprocess.Popen[bytes]:
    if _ending:
        raise DevStackError(f"{spec.name} is not started: this process is ending")
    uid, gid = map(str, spec.user) if spec.user else ("-", "-")
    prefix = [sys.executable, "-I", "-S", str(_TRAMPOLINE), str(os.getpid()), str(int(spec.stop_signal)), uid, gid]
    argv = [*prefix, *spec.command]
    try:
        with spec.log.open("ab") as log:
            output = log.fileno()
            child = fork_child(ChildSpec(argv, spec.folder, spec.environment, output, spec.stdin, spec.inherited))
    except OSError as error:
        raise DevStackError(f"{spec.name} cannot be started: {error}") from error
    with _noting:
        _children[:] = [each for each in _children if each[0].returncode is None]
        _children.append((child, spec.stop_signal))
    return child


def _end(child: subprocess.Popen[bytes], number: signal.Signals, within_s: float, owner: int) -> None:
    if os.getpid() != owner or child.poll() is not None:
        return  # a forked copy of us runs its exit handlers too: the server is not its own
    child.send_signal(number)
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
