"""The health port."""

from __future__ import annotations

import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from ductor_stream.telemetry import health
from ductor_stream.telemetry.health import HealthServer, ask
from ductor_stream.telemetry.metrics import Metrics


class Checks:
    """What the checks say now."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.error: Exception | None = None

    def __call__(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.reasons


@pytest.fixture
def checks() -> Checks:
    return Checks()


@pytest.fixture
def server(checks: Checks) -> Iterator[HealthServer]:
    server = HealthServer(Metrics(app="shop").registry, ready=checks)
    server.start()
    yield server
    server.stop()


def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{server.host}:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_it_listens_on_this_machine_only(server: HealthServer) -> None:
    assert server.host == "127.0.0.1"


def test_ready_while_no_check_complains(server: HealthServer) -> None:
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reasons": []})


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_process_here_is_asked_past_any_proxy(
    server: HealthServer, checks: Checks, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for exempt in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(exempt, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert json.loads(ask(server.port, "/readyz", 10)) == {"ready": True, "reasons": []}
    checks.reasons = ["Postgres is away"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server.port, "/readyz", 10)
    refused.value.close()


def test_not_ready_says_why_and_goes_green_again(server: HealthServer, checks: Checks) -> None:
    checks.reasons = ["Kafka cannot be reached"]
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reasons": ["Kafka cannot be reached"]})
    assert get(server, "/healthz")[0] == 200
    checks.reasons = []
    assert get(server, "/readyz")[0] == 200


def test_a_check_that_raises_is_a_reason(server: HealthServer, checks: Checks) -> None:
    checks.error = RuntimeError("no connection")
    status, body = get(server, "/readyz")
    assert status == 503
    assert "no connection" in json.loads(body)["reasons"][0]


def test_metrics_are_served(server: HealthServer) -> None:
    status, body = get(server, "/metrics")
    assert status == 200
    assert b'ductor_ticks_total{app="shop"}' in body


def test_another_path_is_told_what_there_is(server: HealthServer) -> None:
    status, body = get(server, "/")
    assert status == 404
    assert "/readyz" in json.loads(body)["paths"]


def test_who_hangs_up_or_says_nothing_leaves_no_trace(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As load balancers look whether a port is open; and no text on stderr breaks a log of JSON."""
    monkeypatch.setattr(health._Handler, "timeout", 0.05)
    handled = threading.Semaphore(0)
    finished = server._server.shutdown_request
    monkeypatch.setattr(server._server, "shutdown_request", lambda given: (finished(given), handled.release()))
    hung_up = socket.create_connection(("127.0.0.1", server.port))
    hung_up.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hung_up.close()
    with socket.create_connection(("127.0.0.1", server.port)):
        assert handled.acquire(timeout=30) and handled.acquire(timeout=30)
    assert capfd.readouterr().err == ""


def test_what_fails_in_it_goes_to_the_log(
    server: HealthServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        server._server.handle_error(None, ("127.0.0.1", 1))
    assert "ZeroDivisionError" in caplog.text
    assert capfd.readouterr().err == ""


def test_a_taken_port_is_an_error(server: HealthServer) -> None:
    with pytest.raises(OSError):
        HealthServer(Metrics().registry, port=server.port)


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    HealthServer(Metrics().registry).stop()
