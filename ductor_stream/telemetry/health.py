"""The health port of a process: ``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP, from a thread of its own."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec
from prometheus_client import CollectorRegistry, make_wsgi_app

from ductor_stream.telemetry.logs import get_logger

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_log = get_logger(__name__)

# A probe or a scrape sends its request at once; who does not is cut off, so that idle connections hold no thread.
_REQUEST_TIMEOUT_S = 5

# How often the thread looks whether it is to stop: twenty wake-ups a second cost nothing that can be measured.
_STOP_WITHIN_S = 0.05

Reasons = Callable[[], list[str]]
"""Sentences that say what is wrong now; an empty list says that all is well. Called from the health thread."""


def all_well() -> list[str]:
    """A check that never complains."""
    return []


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(port: int, path: str, within_s: float) -> str:
    """What the health port of a process on this machine says, past any proxy: those are for what is outside.

    Raises OSError where it does not answer, or says no.
    """
    with _direct.open(f"http://127.0.0.1:{port}{path}", timeout=within_s) as answer:
        return str(answer.read(), "utf-8")


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: they are not worth a line each."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # The address is not looked up: resolving a name can take seconds where there is no resolver.
    address_family = socket.AF_INET

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A prober that hangs up or says nothing is no news; what else is wrong goes to the log, not to stderr."""
        error = sys.exception()
        if isinstance(error, OSError):
            _log.debug("a request to the health port broke off", reason=repr(error))
        else:
            _log.exception("a request to the health port failed")

    def server_bind(self) -> None:
        super(WSGIServer, self).server_bind()
        self.setup_environ()


class HealthServer:
    """Serves the health port from ``start`` until ``stop``. Port 0 takes a free one; ``port`` says which.

    ``/readyz`` answers 200 or 503 with ``{"ready": …, "reasons": […]}``, ``/healthz`` likewise for what only a
    restart mends. A check that raises counts as a reason. Raises OSError where the port is taken.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        ready: Reasons = all_well,
        alive: Reasons = all_well,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._checks = {"/healthz": ("alive", alive), "/readyz": ("ready", ready)}
        self._server = _Server((host, port), _Handler)
        self._server.set_app(self._answer)
        self._thread = threading.Thread(target=self._serve, name="ductor-health", daemon=True)

    @property
    def host(self) -> str:
        """The address that is listened on."""
        return str(self._server.server_address[0])

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port. Does nothing when it was never started but close it."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=_STOP_WITHIN_S)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        if path not in self._checks:
            return _respond(start_response, "404 Not Found", {"paths": ["/healthz", "/readyz", "/metrics"]})
        word, check = self._checks[path]
        reasons = _asked(check)
        status = "503 Service Unavailable" if reasons else "200 OK"
        return _respond(start_response, status, {word: not reasons, "reasons": reasons})


def _asked(check: Reasons) -> list[str]:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 (whatever the check ran into, the probe must hear "no")
        return [f"the check itself failed: {error!r}"]


def _respond(start_response: StartResponse, status: str, body: Any) -> Iterable[bytes]:
    encoded = msgspec.json.encode(body)
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(encoded)))])
    return [encoded]
