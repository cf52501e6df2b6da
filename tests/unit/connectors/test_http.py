"""HTTP steps against a real server on this machine: what is sent, and what becomes of each kind of answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from http_server import Answer, HttpServer, http_server
from support import free_port, until
from worker_rigs import Reported, bench

from ductor_stream import App, HttpRequest, Secret
from ductor_stream.config import Settings
from ductor_stream.connectors.binding import runnable_steps
from ductor_stream.connectors.http import open_client, retry_after_s

SECRET = "s3cr3t-of-the-shop"


@dataclass
class Order:
    id: str
    total: float = 1.5
    note: str | None = None


@dataclass
class Receipt:
    number: str


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as made:
        yield made


def attempt(request: HttpRequest, input: Any, output: Any = None, *, type: Any = Order, **task: Any) -> dict[str, Any]:
    """One attempt, as a worker makes it; its result as it goes to Kafka."""
    app = App("t")
    how = {} if input is None else {"input": type}
    app.http_step("call", request, output=output, **how)
    steps = runnable_steps(app, Settings())
    with bench(SimpleNamespace(steps=steps)) as b:  # type: ignore[arg-type]
        delivery: Reported = b.run("call", *([] if input is None else [input]), **task)
        until(lambda: delivery.result, what="the result of an attempt")
    assert delivery.result is not None
    return delivery.result


def test_a_post_sends_the_input_and_gives_the_answer(server: HttpServer) -> None:
    server.answer(Answer(201, b'{"number": "r-1"}'))
    request = HttpRequest(
        method="POST",
        url=server.url + "/orders/{id}?note={note}",
        headers={"X-Order": "order {id}", "Accept": "text/x"},
    )
    done = attempt(request, {"id": "a/b c", "total": 2.5, "note": "é&?"}, Receipt, run_id="käse 1", node_id="3")
    assert (done["outcome"], done["output"]) == ("completed", {"number": "r-1"})
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/orders/a%2Fb%20c?note=%C3%A9%26%3F")
    assert asked.json == {"id": "a/b c", "total": 2.5, "note": "é&?"}
    assert asked.headers["X-Order"] == "order a/b c"
    assert asked.headers["Accept"] == "text/x"
    assert asked.headers["Accept-Encoding"] == "identity"
    assert asked.headers["Content-Type"] == "application/json"
    assert asked.headers["Idempotency-Key"] == "t/k%C3%A4se 1/1/3"


def test_a_get_sends_no_body_and_a_named_field_is_the_body(server: HttpServer) -> None:
    attempt(HttpRequest(method="GET", url=server.url + "/x"), None)
    attempt(HttpRequest(method="PUT", url=server.url + "/{id}", body="total"), {"id": "7", "total": 3.5})
    assert [(one.method, one.body) for one in server.asked] == [("GET", b""), ("PUT", b"3.5")]


def test_every_attempt_of_a_node_has_the_same_idempotency_key(server: HttpServer) -> None:
    request = HttpRequest(method="POST", url=server.url + "/x", idempotency_header="X-Request-Id")
    for generation in (1, 1, 2):
        attempt(request, {"id": "7"}, generation=generation, attempt=generation)
    assert {one.headers["X-Request-Id"] for one in server.asked} == {"t/run-1/1/1"}
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
def test_a_status_that_may_pass_is_retryable(server: HttpServer, status: int) -> None:
    server.answer(Answer(status, b"later", {"Retry-After": "7"}))
    error = attempt(HttpRequest(method="POST", url=server.url + "/x"), {"id": "7"})["error"]
    assert (error["type"], error["retryable"], error["retry_after_ms"]) == (f"HTTP{status}", True, 7_000)
    assert error["details"] == {"status": status, "body": "later"}
    assert error["message"] == f"POST {server.url}/x: status {status}"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 304])
def test_any_other_status_is_final_and_stands_in_the_type(server: HttpServer, status: int) -> None:
    server.answer(Answer(status, b"" if status == 304 else b"no"))
    error = attempt(HttpRequest(method="POST", url=server.url + "/x"), {"id": "7"})["error"]
    assert (error["type"], error["retryable"], error.get("retry_after_ms")) == (f"HTTP{status}", False, None)


def test_the_statuses_that_are_tried_again_can_be_chosen(server: HttpServer) -> None:
    for status, retryable in ((409, True), (503, False)):
        server.answer(Answer(status))
        request = HttpRequest(method="POST", url=server.url + "/x", retry_on={409})
        assert attempt(request, {"id": "7"})["error"]["retryable"] is retryable


def test_a_redirect_is_not_followed(server: HttpServer) -> None:
    server.answer(Answer(302, b"", {"Location": server.url + "/elsewhere"}), Answer())
    error = attempt(HttpRequest(method="GET", url=server.url + "/x"), None)["error"]
    assert (error["type"], error["retryable"]) == ("HTTP302", False)
    assert error["details"]["location"] == server.url + "/elsewhere"
    assert len(server.asked) == 1


def test_no_server_and_a_connection_that_breaks_are_retryable(server: HttpServer) -> None:
    refused = attempt(HttpRequest(method="GET", url=f"http://127.0.0.1:{free_port()}/x"), None)["error"]
    server.answer(Answer(breaks=True))
    broken = attempt(HttpRequest(method="POST", url=server.url + "/x"), {"id": "7"})["error"]
    for error in (refused, broken):
        assert (error["type"], error["retryable"]) == ("HTTPConnectionError", True)


def test_a_server_that_hangs_is_given_up_by_the_timeout_of_the_step(server: HttpServer) -> None:
    server.answer(Answer(hangs=True))
    done = attempt(HttpRequest(method="POST", url=server.url + "/x"), {"id": "7"}, start_to_close_ms=200)
    assert (done["outcome"], done["error"]["code"]) == ("failed", "timeout_start_to_close")


def test_an_answer_beyond_the_bound_is_final(server: HttpServer) -> None:
    server.answer(Answer(200, b'"' + b"x" * 5_000 + b'"'))
    request = HttpRequest(method="GET", url=server.url + "/x", max_response_bytes=5_001)
    error = attempt(request, None, str)["error"]
    assert (error["type"], error["retryable"]) == ("ResponseTooLarge", False)
    request = HttpRequest(method="GET", url=server.url + "/x", max_response_bytes=5_002)
    assert attempt(request, None, str)["output"] == "x" * 5_000
    server.answer(Answer(503, b"x" * 1_000_000))
    assert len(attempt(request, None, str)["error"]["details"]["body"]) == 2_000


def test_an_answer_that_does_not_fit_the_output_is_final(server: HttpServer) -> None:
    request = HttpRequest(method="GET", url=server.url + "/x")
    for answer, said in (
        (Answer(200, b'{"number": 7}'), "answer.number: Expected `str`, got `int`"),
        (Answer(200, b"<html>"), "JSON is malformed"),
        (Answer(204, b""), "answer: Expected `object`, got `null`"),
        (Answer(200, b"x", {"Content-Encoding": "gzip"}), "compressed"),
    ):
        server.answer(answer)
        error = attempt(request, None, Receipt)["error"]
        assert (error["type"], error["retryable"]) == ("InvalidResponse", False)
        assert said in error["message"]


def test_an_answer_that_nobody_wants_is_dropped(server: HttpServer) -> None:
    server.answer(Answer(200, b"<html>"))
    assert attempt(HttpRequest(method="GET", url=server.url + "/x"), None)["outcome"] == "completed"


def test_a_secret_comes_from_the_environment_or_a_file(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    headers = {"Authorization": Secret("SHOP_TOKEN", "Bearer {}")}
    request = HttpRequest(method="POST", url=server.url + "/x", headers=headers)
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    attempt(request, {"id": "7"})
    monkeypatch.delenv("SHOP_TOKEN")
    (tmp_path / "token").write_text("other-secret\n")
    monkeypatch.setenv("SHOP_TOKEN_FILE", str(tmp_path / "token"))
    attempt(request, {"id": "7"})
    assert [one.headers["Authorization"] for one in server.asked] == [f"Bearer {SECRET}", "Bearer other-secret"]


@pytest.mark.parametrize("value", [None, " ", "line\nbreak-secret", "é-secret-of-ours", "qz5jx"])
def test_a_secret_that_is_missing_or_cannot_be_sent_is_not_told(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("SHOP_TOKEN", value)
    request = HttpRequest(method="POST", url=server.url + "/x", headers={"X-Token": Secret("SHOP_TOKEN")})
    error = attempt(request, {"id": "7"})["error"]
    assert (error["type"], error["retryable"]) == ("SecretMissing", True)
    assert "SHOP_TOKEN" in error["message"]
    assert "secret-of-ours" not in str(error)
    assert "break-secret" not in str(error)
    assert "qz5jx" not in str(error)
    assert server.asked == []


def test_a_secret_never_leaves_by_result_error_or_log(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    request = HttpRequest(method="POST", url=server.url + "/{id}", headers={"Authorization": Secret("SHOP_TOKEN")})
    echo = Answer(200, b'{"number": "' + SECRET.encode() + b'"}')
    told = []
    for answer in (
        echo,
        Answer(302, b"", {"Location": f"{server.url}/?token={SECRET}"}),
        Answer(503, echo.body, {"Content-Encoding": "gzip"}),
        Answer(500, echo.body),
        Answer(400, echo.body),
        Answer(breaks=True),
        Answer(200, b"<" + echo.body),
    ):
        server.answer(answer)
        told.append(attempt(request, {"id": "7"}, Receipt))
    assert told[0]["output"] == {"number": "***"}
    assert all(one.headers["Authorization"] == SECRET for one in server.asked)
    assert SECRET not in str(told)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("escape", [json.dumps, lambda text: f'"{quote(text, safe="")}"'], ids=["json", "url"])
@pytest.mark.parametrize("status", [200, 400])
def test_a_secret_that_is_echoed_in_other_words_is_found(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, status: int, escape: Callable[[str], str]
) -> None:
    secret = 'a"b\\c/d%e <f>'
    monkeypatch.setenv("SHOP_TOKEN", secret)
    request = HttpRequest(method="POST", url=server.url + "/x", headers={"X-Token": Secret("SHOP_TOKEN")})
    for body in (escape(secret), escape(secret).replace("/", "\\/").replace("f", "\\u0066").replace("%2F", "%2f")):
        server.answer(Answer(status, b'{"number": %s}' % body.encode()))
        told = attempt(request, {"id": "7"}, Receipt)
        assert told["output"] == {"number": "***"} if status == 200 else "***" in told["error"]["details"]["body"]


@pytest.mark.parametrize("secret", [SECRET, 'it\'s a "quoted" \\secret'])
def test_a_secret_is_not_told_by_what_the_http_library_refuses(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Should a header be refused after all: here by a format that no declaration takes."""
    monkeypatch.setenv("SHOP_TOKEN", secret)
    app = App("t")
    request = HttpRequest(method="GET", url=server.url + "/x", headers={"X-Token": Secret("SHOP_TOKEN")})
    step = app.http_step("call", request)
    step.request = msgspec.structs.replace(request, headers={"X-Token": Secret("SHOP_TOKEN", "Bearer {} ")})
    with bench(SimpleNamespace(steps=runnable_steps(app, Settings()))) as b:  # type: ignore[arg-type]
        delivery = b.run("call")
        until(lambda: delivery.result, what="the result of an attempt")
    assert delivery.result is not None
    error = delivery.result["error"]
    assert error["type"] == "InvalidRequest"
    assert error["message"].endswith("LocalProtocolError: Illegal header value b'Bearer *** '")


@pytest.mark.parametrize("secret", ["Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA== AWS4"])
@pytest.mark.parametrize("status", [200, 400])
def test_a_long_word_of_a_secret_is_found_by_itself(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, status: int, secret: str
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", secret)
    request = HttpRequest(method="POST", url=server.url + "/x", headers={"Authorization": Secret("SHOP_TOKEN")})
    for echoed in (b"Basic is dXNlcjpwYXNzd29yZA==", b"Basic is dXNlcjpwYXNzd29yZA%3d%3D"):
        server.answer(Answer(status, b'{"number": "%s"}' % echoed))
        told = attempt(request, {"id": "7"}, Receipt)
        if status == 200:
            assert told["output"] == {"number": "Basic is ***"}
        else:
            assert told["error"]["details"]["body"] == '{"number": "Basic is ***"}'


def test_cookies_of_one_run_are_not_seen_by_another(server: HttpServer) -> None:
    server.answer(Answer(200, b"{}", {"Set-Cookie": "session=of-run-1"}))
    app = App("t")
    app.http_step("call", HttpRequest(method="GET", url=server.url + "/x"))
    with bench(SimpleNamespace(steps=runnable_steps(app, Settings()))) as b:  # type: ignore[arg-type]
        for run_id in ("one", "two"):
            delivery = b.run("call", run_id=run_id)
            until(lambda d=delivery: d.result, what="the result")
    assert [one.headers.get("Cookie") for one in server.asked] == [None, None]

    async def kept() -> int:
        async with asynccontextmanager(open_client)() as client:
            await client.get(server.url)
            return len(client.cookies.jar)

    assert asyncio.run(kept()) == 0


@pytest.mark.parametrize("id", ["..", ".", ""])
@pytest.mark.parametrize("path", ["/orders/{id}/lines", "/orders/{id}", "/orders/{id}/", "/orders/{id}?by={id}"])
def test_a_field_cannot_lead_out_of_its_place_in_the_path(server: HttpServer, path: str, id: str) -> None:
    error = attempt(HttpRequest(method="DELETE", url=server.url + path), {"id": id})["error"]
    assert (error["type"], error["retryable"]) == ("InvalidInput", False)
    assert "a field makes the path '/orders/" in error["message"]
    assert server.asked == []


def test_what_is_odd_in_the_url_as_declared_is_not_blamed_on_a_field(server: HttpServer) -> None:
    for path, sent in (
        ("/orders/{id}/", "/orders/7/"),
        ("/a//{id}", "/a//7"),
        ("/orders/?by={note}", "/orders/?by="),
        ("/v-{note}", "/v-"),
    ):
        attempt(HttpRequest(method="GET", url=server.url + path), {"id": "7", "note": ""})
        assert server.asked[-1].path == sent


def test_a_field_that_is_null_is_an_error_of_the_input(server: HttpServer) -> None:
    error = attempt(HttpRequest(method="GET", url=server.url + "/{note}"), {"id": "7"})["error"]
    assert (error["type"], error["message"]) == ("InvalidInput", "url: note is None, and has to be a text or a number")


def test_a_secret_that_an_error_echoes_in_pieces_is_found(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little of an answer the step takes."""
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    pieces = [SECRET[:12].encode(), SECRET[12:].encode(), b""]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    server.answer(Answer(400, body, {"Transfer-Encoding": "chunked"}))
    request = HttpRequest(
        method="GET", url=server.url + "/x", headers={"X-Token": Secret("SHOP_TOKEN")}, max_response_bytes=5
    )
    assert attempt(request, None)["error"]["details"] == {"status": 400, "body": "***"}


@pytest.mark.parametrize(
    ("given", "date", "seconds"),
    [
        (None, None, None),
        ("120", None, 120.0),
        ("-5", None, None),
        ("0", None, None),
        ("999999999", None, 86_400.0),
        ("9" * 400, None, 86_400.0),
        ("soon", None, None),
        ("Wed, 01 May 2030 12:01:00 GMT", "Wed, 01 May 2030 12:00:00 GMT", 60.0),
        ("Wed, 01 May 2030 11:00:00 GMT", "Wed, 01 May 2030 12:00:00 GMT", None),
        ("Wed, 01 May 2030 11:00:00", "nonsense", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(given: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after_s(given, date) == seconds
