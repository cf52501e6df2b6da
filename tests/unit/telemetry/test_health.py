"""The health port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from ductor_stream.telemetry.health import HealthServer
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


def test_a_taken_port_is_an_error(server: HealthServer) -> None:
    with pytest.raises(OSError):
        HealthServer(Metrics().registry, port=server.port)


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    HealthServer(Metrics().registry).stop()
