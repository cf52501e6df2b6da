"""An HTTP server on 127.0.0.1 that answers as the test says, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What is answered. ``hangs``: nothing, until the server ends; ``breaks``: the connection is closed instead."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    breaks: bool = False


class HttpServer:
    """``answers`` are used up one after the other; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: deque[Answer] = deque([Answer()])
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, *answers: Answer) -> None:
        """Answer so from now on."""
        self.answers = deque(answers)

    def next_answer(self, asked: Asked) -> Answer:
        """What is answered to that request."""
        return self.answers.popleft() if len(self.answers) > 1 else self.answers[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Nothing."""

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, self.path, dict(self.headers), body)
                server.asked.append(asked)
                answer = server.next_answer(asked)
                if answer.hangs:
                    server.ended.wait()
                if answer.hangs or answer.breaks:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_one

        return Handler


@contextmanager
def http_server() -> Iterator[HttpServer]:
    """A server that is closed with the block."""
    server = HttpServer()
    try:
        yield server
    finally:
        server.close()
