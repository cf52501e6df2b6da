"""``http.request``: one attempt of an HTTP step.

Delivery: at least once, each time with the same idempotency key. The attempt ends with the step's own timeout, which
the worker keeps; there is no other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from ductor_stream.connectors.secrets import redacted, value_of
from ductor_stream.engine import values
from ductor_stream.errors import InvalidValue, RetryableError, TerminalError
from ductor_stream.templates import Template
from ductor_stream.work import HttpStep, Secret
from ductor_stream.worker.context import current_attempt

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
"""Methods that send the whole input where the declaration names no field."""

EXCERPT = 2_000
"""Bytes of an error's answer that are kept in its details."""

ENOUGH = 64_000
"""Bytes of an error's answer that are read at least: a secret that it echoes must not be cut, or it would not be found."""

LONGEST_WAIT_S = 86_400.0
"""A ``Retry-After`` beyond a day is taken for a day."""


async def open_client() -> AsyncIterator[httpx.AsyncClient]:
    """One client for all HTTP steps of a loop: connections are kept, cookies are not (one run must not see another's)."""
    for name in ("httpx", "httpcore"):
        # Their lines have URLs with the fields of users' inputs in them, and headers.
        logging.getLogger(name).setLevel(logging.WARNING)
    jar = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(timeout=None, limits=limits, cookies=jar, follow_redirects=False) as client:
        yield client


class Sender:
    """The function of an HTTP step."""

    def __init__(self, step: HttpStep[..., Any]) -> None:
        self._request = request = step.request
        self._output = step.definition.output_type
        input = step.parameters.all[0].type if step.parameters.all else msgspec.UNSET
        self._url = Template(request.url, input, "url")
        # Segments of the path without a field in them: what is odd there, the declaration wants.
        self._fixed = [
            one == other
            for one, other in zip(*(_segments(self._url.filled_with(text)) for text in ("a", "b")), strict=True)
        ]
        self._headers = {
            name: value if isinstance(value, Secret) else Template(value, input, f"header {name}")
            for name, value in request.headers.items()
        }
        self._named = f"{request.method} {request.url}"

    async def __call__(self, *input: Any, client: httpx.AsyncClient) -> Any:
        """Send it. Raises RetryableError and TerminalError, as the declaration says."""
        plain = msgspec.json.decode(values.encode(input[0])) if input else None
        secrets: list[str] = []
        try:
            response = await client.send(self._built(plain, secrets), stream=True)
            try:
                content = await self._read(response)
            finally:
                await response.aclose()
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
            raise TerminalError(f"{self._named}: {_said(error, secrets)}", type="InvalidRequest") from None
        except httpx.TransportError as error:
            raise RetryableError(f"{self._named}: {_said(error, secrets)}", type="HTTPConnectionError") from None
        return self._answer(response, redacted(content, secrets), secrets)

    # -- what is sent -----------------------------------------------------------------------

    def _built(self, plain: Any, secrets: list[str]) -> httpx.Request:
        attempt = current_attempt()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "ductor-stream"}
        body = self._body(plain)
        if body is not None:
            headers["Content-Type"] = "application/json"
        own = {name: self._header(name, value, plain, secrets) for name, value in self._headers.items()}
        own[self._request.idempotency_header] = header_text(attempt.idempotency_key)
        known = {name.lower() for name in own}
        headers = {name: value for name, value in headers.items() if name.lower() not in known} | own
        return httpx.Request(self._request.method, self._target(plain), headers=headers, content=body)

    def _body(self, plain: Any) -> bytes | None:
        if self._request.body is not None:
            return values.encode(plain.get(self._request.body))
        return values.encode(plain) if plain is not None and self._request.method in WITH_BODY else None

    def _header(self, name: str, value: Secret | Template, plain: Any, secrets: list[str]) -> str:
        if isinstance(value, Secret):
            secret = value_of(value)
            secrets.append(secret)
            return value.format.format(secret)
        return value.fill(plain, header_text)

    def _target(self, plain: Any) -> str:
        found = self._url.fill(plain, lambda text: quote(text, safe=""))
        # A field must not lead out of its place: "", "." and ".." are whole segments with another meaning.
        filled = zip(self._fixed, _segments(found), strict=True)
        if any(part in ("", ".", "..") for is_fixed, part in filled if not is_fixed):
            raise TerminalError(f"{self._named}: a field makes the path {urlsplit(found).path!r}", type="InvalidInput")
        return found

    # -- what is answered -------------------------------------------------------------------

    async def _read(self, response: httpx.Response) -> bytes:
        limit, content = self._request.max_response_bytes, bytearray()
        if response.is_success and response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise TerminalError(
                f"{self._named}: the answer is compressed, though it must not be", type="InvalidResponse"
            )
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > limit and response.is_success:
                message = f"{self._named}: the answer has more than {limit:,} bytes"
                raise TerminalError(message, type="ResponseTooLarge", details={"status": response.status_code})
            if len(content) > max(limit, ENOUGH):
                break
        return bytes(content)

    def _answer(self, response: httpx.Response, content: bytes, secrets: list[str]) -> Any:
        status = response.status_code
        if response.is_success:
            return self._decoded(content)
        details = {"status": status, "body": content[:EXCERPT].decode(errors="replace")}
        if "Location" in response.headers:
            details["location"] = redacted(response.headers["Location"].encode(), secrets).decode()
        message, type_ = f"{self._named}: status {status}", f"HTTP{status}"
        if status in self._request.retry_on:
            wait = retry_after_s(response.headers.get("Retry-After"), response.headers.get("Date"))
            raise RetryableError(message, type=type_, retry_after=wait, details=details)
        raise TerminalError(message, type=type_, details=details)

    def _decoded(self, content: bytes) -> Any:
        if self._output is None or self._output is type(None):
            return None
        try:
            return values.decode(content or b"null", self._output, "answer")
        except InvalidValue as error:
            raise TerminalError(f"{self._named}: {error}", type="InvalidResponse") from None


def _segments(url: str) -> list[str]:
    return urlsplit(url).path.split("/")


def header_text(text: str) -> str:
    """A text as a header can have it: other characters than visible ASCII are escaped as in URLs."""
    return quote(text, safe="".join(map(chr, range(0x21, 0x7F))) + " ").strip()


def retry_after_s(given: str | None, date: str | None) -> float | None:
    """Seconds that ``Retry-After`` asks for: a number, or a date, which is compared with the server's own ``Date``."""
    if given is None:
        return None
    try:
        seconds = float(int(given))
    except OverflowError:
        return LONGEST_WAIT_S
    except ValueError:
        try:
            until = parsedate_to_datetime(given)
            now = parsedate_to_datetime(date) if date else datetime.now(UTC)
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError):
            return None
    # What is asked for takes the place of the policy's delay: "at once" would make ten attempts of no time at all.
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else None


def _said(error: Exception, secrets: list[str]) -> str:
    """What the HTTP library says, without secrets: of a header that it refuses it shows the value."""
    text = redacted(str(error).encode(errors="backslashreplace"), secrets).decode()
    return f"{type(error).__name__}: {json.dumps(text)[1:-1]}" if text else type(error).__name__
