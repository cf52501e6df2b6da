"""A long-running process: signals, waiting for servers at the start, the registry."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from prometheus_client import generate_latest

from ductor_stream.cli.running import connected, process_registry, run_process, stop_on_signals
from ductor_stream.config import Settings
from ductor_stream.errors import InvalidConfig, LogUnavailable, SchemaMismatch, StoreUnavailable
from ductor_stream.wiring.group import Service


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_to_stop_and_the_handler_is_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_the_process_at_once() -> None:
    text = (
        "import os, signal\nfrom ductor_stream.cli.running import stop_on_signals\n"
        "with stop_on_signals():\n    os.kill(os.getpid(), signal.SIGTERM)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')\n"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (130, "")


def test_servers_that_are_away_are_waited_for() -> None:
    answers: list[Exception] = [LogUnavailable("away"), StoreUnavailable("away")]

    def connect() -> str:
        if answers:
            raise answers.pop()
        return "there"

    with stop_on_signals() as stop:
        assert connected(connect, stop) == "there"


def test_what_waiting_cannot_mend_is_raised_at_once() -> None:
    def connect() -> str:
        raise SchemaMismatch("too old")

    with stop_on_signals() as stop, pytest.raises(SchemaMismatch):
        connected(connect, stop)


def test_servers_that_stay_away_are_given_up() -> None:
    def connect() -> str:
        raise StoreUnavailable("away")

    with stop_on_signals() as stop, pytest.raises(StoreUnavailable, match=r"^away \(tried for 0 s; "):
        connected(connect, stop, within_s=0)


def test_a_stop_ends_the_waiting() -> None:
    with stop_on_signals() as stop:
        stop.set()
        assert connected(lambda: "there", stop) is None


def test_the_registry_tells_of_the_process() -> None:
    exposed = generate_latest(process_registry()).decode()
    assert "process_cpu_seconds_total" in exposed
    assert "python_info" in exposed


def test_a_process_is_ready_once_its_services_are_and_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ductor_stream.telemetry.logs.configure", lambda *_: None)
    stopping, ended, told = threading.Event(), threading.Event(), []

    def run() -> None:
        stopping.wait(30)
        ended.set()

    def ready(_: object) -> bool:
        told.append("ready")
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    service = Service("worker", run, stopping.set, list)
    run_process(Settings(health_port=0), lambda _: [service], ready)
    assert told == ["ready"]
    assert ended.is_set()


def test_a_health_port_that_is_taken_is_said_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidConfig, match=rf"port {port} of 127.0.0.1: .*; name another by --health-port"):
            run_process(Settings(health_port=port), lambda _: [])
