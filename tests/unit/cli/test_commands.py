"""Exit codes and messages of the command line, as far as no server is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ductor_stream.cli.commands import json_argument
from ductor_stream.cli.connection import DevServers, remember, settings_for
from ductor_stream.cli.failures import NotFound, Refused, exit_code, reported
from ductor_stream.cli.main import main
from ductor_stream.dev.lock import FolderLock
from ductor_stream.errors import (
    DuctorError,
    InvalidConfig,
    InvalidValue,
    LogUnavailable,
    RunExists,
    RunFailed,
    RunNotFound,
    SchemaMismatch,
    StoreUnavailable,
    TopicsNotReady,
)

NOWHERE = "postgresql://postgres@127.0.0.1:1/none"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command in an empty folder and environment: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("DUCTOR_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
            raise SystemExit(0)
        out, err = capfd.readouterr()
        return int(str(ended.value.code or 0)), out, err

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("x"), 1),
        (DuctorError("x"), 1),
        (InvalidConfig("x"), 2),
        (InvalidValue("x"), 2),
        (RunNotFound("x"), 3),
        (NotFound("x"), 3),
        (Refused("x"), 4),
        (RunExists("x"), 4),
        (SchemaMismatch("x"), 4),
        (TopicsNotReady("x"), 4),
        (LogUnavailable("x"), 5),
        (StoreUnavailable("x"), 5),
    ],
)
def test_each_error_has_its_exit_code(error: DuctorError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    "command", [("dev", "shop:app"), ("dev", "status"), ("demo",), ("worker", "shop:app"), ("--help",)]
)
def test_windows_is_told_wsl2(call: Call, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    code, out, err = call(*command)
    assert (code, out) == (1, "")
    assert err.startswith("error: the commands run on Linux and macOS: on Windows, use them in WSL2\n")


def test_a_mistyped_command_is_told_the_nearest(call: Call) -> None:
    code, _, err = call("demmo")
    assert code == 2 and "there is no command 'demmo' (did you mean 'demo'?)" in err


@pytest.mark.parametrize("typed", ["demmo r", "demmo runs l", "runs l"])
def test_a_shell_that_completes_behind_a_mistyped_command_hears_no_error(
    call: Call, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setenv("_DUCTOR_STREAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"ductor-stream {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    code, out, err = call()
    assert (code, err) == (0, "")
    assert typed != "runs l" or out == "plain,list\n"


def test_help_lists_every_command(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for name in ("dev", "demo", "coordinator", "worker", "serve", "migrate", "topics", "start", "signal", "runs"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("start",),
        ("runs", "list", "--status", "sleeping"),
        ("dead-letters", "replay"),
        ("worker", "shop:app", "--concurrency", "0"),
    ],
)
def test_wrong_use_is_2(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert "Error: " in err


def test_an_error_of_ours_is_one_line_and_a_remedy(call: Call) -> None:
    code, out, err = call("runs", "list", "--namespace", "shop")
    assert (code, out) == (2, "")
    line, remedy = err.splitlines()
    assert line.startswith("error: where are Kafka and Postgres? no `ductor-stream dev` runs in ")
    assert remedy == "  `ductor-stream explain invalid_config` says more"


def test_with_json_an_error_is_json_too(call: Call) -> None:
    code, out, err = call("runs", "list", "--namespace", "shop", "--json")
    assert (code, out) == (2, "")
    told = json.loads(err)["error"]
    assert told["code"] == "invalid_config"
    assert told["remedy"]


def test_an_unknown_namespace_is_asked_for(call: Call) -> None:
    code, _, err = call("runs", "show", "order-1", "--database", NOWHERE)
    assert code == 2
    assert "--namespace" in err


def test_a_database_that_cannot_be_reached_is_5(call: Call) -> None:
    code, _, err = call("runs", "list", "--namespace", "shop", "--database", NOWHERE)
    assert code == 5
    assert "Traceback" not in err


def test_an_app_that_cannot_be_loaded_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "broken_shop.py").write_text("import json\nundefined_name\n")
    code, _, err = call("worker", "broken_shop:app", "--kafka", "127.0.0.1:1")
    assert code == 2
    assert "broken_shop.py:2: NameError: name 'undefined_name' is not defined" in err
    assert "Traceback" not in err


def test_a_queue_that_no_step_uses_is_refused(call: Call, tmp_path: Path) -> None:
    text = 'from ductor_stream import App\napp = App("shop")\n@app.step(queue="payments")\ndef f() -> None: ...\n'
    (tmp_path / "queue_shop.py").write_text(text)
    code, _, err = call("worker", "queue_shop:app", "--queue", "payment", "--kafka", "127.0.0.1:1")
    assert code == 2
    assert "no step on queue payment; it has payments" in err


def test_a_closed_pipe_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with pytest.raises(SystemExit) as ended, reported(as_json=False):
        raise BrokenPipeError
    assert ended.value.code == 0


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    """Through click, which would end with 1."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ductor_stream.cli.main", "explain"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), reported(as_json=False):
        raise ZeroDivisionError


def test_json_arguments(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text('{"amount": 1.10, "name": "Zoë"}', encoding="utf-8")
    assert bytes(json_argument(f"@{path}", "--input")) == path.read_bytes()
    assert bytes(json_argument("1.10", "--input")) == b"1.10"
    with pytest.raises(InvalidValue, match="a text needs quotes: --input '\"order-42\"'"):
        json_argument("order-42", "--input")
    with pytest.raises(InvalidValue, match="No such file"):
        json_argument("@nowhere.json", "--input")


def test_servers_of_a_running_dev_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DUCTOR_")]:
        monkeypatch.delenv(name)
    lock = FolderLock(tmp_path / ".ductor" / "lock")
    lock.acquire()
    with pytest.raises(InvalidConfig, match=rf"process {os.getpid()}\) is starting"):
        settings_for()
    remember(DevServers("127.0.0.1:9", "postgresql://x", str(tmp_path / ".ductor"), "shop", os.getpid()))
    found = settings_for()
    assert (found.kafka_bootstrap, found.database_url, found.namespace) == ("127.0.0.1:9", "postgresql://x", "shop")
    assert settings_for(of_app=True).namespace is None  # an app that is named has one of its own
    assert settings_for(kafka_bootstrap="other:9092").database_url is None
    left = DevServers("127.0.0.1:9", "postgresql://x", str(tmp_path / ".ductor"), "shop", os.getpid() + 1)
    remember(left)  # by one that was killed, while the next one starts
    with pytest.raises(InvalidConfig, match="is starting"):
        settings_for()
    lock.release()
    with pytest.raises(InvalidConfig, match="no `ductor-stream dev` runs in .*: start one there"):
        settings_for()


def test_the_help_comes_without_the_drivers() -> None:
    """Importing Kafka's and Postgres's drivers takes longer than a newcomer's first look should."""
    text = "import sys; from ductor_stream.cli.main import cli; print('confluent_kafka' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["runs", "list", "--limit", "0"], "'--limit': 0 is not in the range"),
        (["runs", "list", "--stauts", "failed"], "--stauts"),
        (["runz"], "there is no command 'runz'"),
    ],
)
def test_a_program_reads_also_what_it_has_mistyped(call: Call, arguments: list[str], told: str) -> None:
    code, out, err = call(*arguments, "--json")
    error = json.loads(err)["error"]
    assert (code, out, error["code"]) == (2, "", "usage")
    assert told in error["message"]
    code, _, err = call(*arguments)
    assert (code, err.startswith("Usage: ductor-stream")) == (2, True)
