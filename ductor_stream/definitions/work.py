"""Putting rules and connectors together: what cannot work is refused at the declaration, with its place."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from operator import attrgetter
from types import GenericAlias
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec

from ductor_stream.definitions.policy import changed_options, valid_name
from ductor_stream.definitions.signature import Subject, checked_type
from ductor_stream.engine.binding import Parameter, Parameters
from ductor_stream.engine.definition import StepDefinition, StepOptions
from ductor_stream.errors import InvalidDefinition
from ductor_stream.protocol.limits import MAX_PAYLOAD_BYTES, MAX_TOPIC
from ductor_stream.protocol.topics import is_topic
from ductor_stream.rules.single import Single
from ductor_stream.rules.table import Parts, Table
from ductor_stream.shapes import fields_of, shape_of
from ductor_stream.templates import Template
from ductor_stream.work import Decider, HitPolicy, HttpRequest, HttpStep, KafkaRecord, KafkaStep, Rule, Secret, Verdict

RULE_OPTIONS = StepOptions(start_to_close_ms=10_000)
"""A rule is decided in milliseconds: one that takes seconds has met a worker that is overloaded."""

HTTP_OPTIONS = StepOptions(start_to_close_ms=30_000)
KAFKA_OPTIONS = StepOptions(start_to_close_ms=60_000)
"""Longer than the producer itself tries (30 s), so that what it says is heard."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VISIBLE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "accept-encoding", "connection", "te", "upgrade"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def decision_table(subject: Subject, parts: Parts, options: Mapping[str, Any]) -> Rule[..., Any]:
    """A rule out of a table. Raises InvalidDefinition that names the table, the row and the column."""
    if parts.policy not in get_args(HitPolicy):
        raise subject.refuse(f"hit is {parts.policy!r}; it is one of {', '.join(get_args(HitPolicy))}")
    _check(subject, parts.version, parts.input, parts.output)
    try:
        table = Table(parts)
    except InvalidDefinition as error:
        raise subject.refuse(str(error)) from error
    output = GenericAlias(list, (parts.output,)) if parts.policy == "collect" else parts.output
    return _rule(subject, table, parts.version, (parts.input, output), options)


def expression(
    subject: Subject, text: str, version: str, types: tuple[Any, Any], options: Mapping[str, Any]
) -> Rule[..., Any]:
    """A rule out of one expression; ``types`` are those of input and output. Raises InvalidDefinition."""
    _check(subject, version, *types)
    try:
        single = Single(subject.name, version, text, types)
    except InvalidDefinition as error:
        raise subject.refuse(str(error)) from error
    return _rule(subject, single, version, types, options)


def http_step(
    subject: Subject, request: HttpRequest, types: tuple[Any, Any], options: Mapping[str, Any]
) -> HttpStep[..., Any]:
    """A step that sends a request. Raises InvalidDefinition that names the field of the request."""
    if not isinstance(request, HttpRequest):
        raise subject.refuse(f"it takes an HttpRequest(…), got {request!r}")
    _need(subject, "httpx", "connectors")
    definition, parameters = _step(subject, types, HTTP_OPTIONS, options)
    _check_request(subject, request, types[0])
    step = HttpStep[..., Any](definition, parameters, origin=subject.origin)
    step.request = request
    return step


def kafka_step(subject: Subject, record: KafkaRecord, input: Any, options: Mapping[str, Any]) -> KafkaStep[..., Any]:
    """A step that publishes a record. Raises InvalidDefinition that names the field of the record."""
    if not isinstance(record, KafkaRecord):
        raise subject.refuse(f"it takes a KafkaRecord(…), got {record!r}")
    definition, parameters = _step(subject, (input, None), KAFKA_OPTIONS, options)
    if not is_topic(record.topic):
        raise subject.refuse(f"topic is {record.topic!r}; use 1 to {MAX_TOPIC} characters of A-Z a-z 0-9 . _ -")
    if record.topic.startswith("ductor."):
        raise subject.refuse(f"topic is {record.topic!r}; those of the engine are not published to: use a client")
    for name, text in {
        "key": record.key or "",
        **{f"header {name!r}": v for name, v in record.headers.items()},
    }.items():
        _template(subject, text, input, name)
    _check_part(subject, "value", record.value, input)
    step = KafkaStep[..., Any](definition, parameters, origin=subject.origin)
    step.record = record
    return step


# -- parts ------------------------------------------------------------------------------------


def _rule(
    subject: Subject, decider: Decider, version: str, types: tuple[Any, Any], options: Mapping[str, Any]
) -> Rule[..., Any]:
    parameters = Parameters(subject.name, [Parameter("facts", types[0])])
    chosen = changed_options(RULE_OPTIONS, str(subject), options)
    verdict: Any = Verdict  # of a type that no type checker knows
    definition = StepDefinition(subject.name, chosen, parameters.bind, verdict[types[1]], attrgetter("value"))
    return Rule(definition, parameters, decider, version, subject.origin)


def _check(subject: Subject, version: Any, input: Any, output: Any) -> None:
    valid_name(subject.name, f"{subject}: its name")
    valid_name(version, f"{subject}: its version")
    checked_type(input, "its input", subject)
    checked_type(output, "its output", subject)


def _step(
    subject: Subject, types: tuple[Any, Any], defaults: StepOptions, options: Mapping[str, Any]
) -> tuple[StepDefinition, Parameters]:
    valid_name(subject.name, f"{subject}: its name")
    input, output = types
    taken = [] if input is msgspec.UNSET else [Parameter("input", checked_type(input, "its input", subject))]
    parameters = Parameters(subject.name, taken)
    chosen = changed_options(defaults, str(subject), options)
    return StepDefinition(
        subject.name, chosen, parameters.bind, checked_type(output, "its output", subject)
    ), parameters


def _check_request(subject: Subject, request: HttpRequest, input: Any) -> None:
    if request.method not in METHODS:
        raise subject.refuse(f"method is {request.method!r}; it is one of {', '.join(METHODS)}")
    _check_url(subject, request.url, input)
    for name, value in request.headers.items():
        _check_header(subject, name, value, input)
    _check_header(subject, request.idempotency_header, "", input)
    _check_part(subject, "body", request.body, input)
    if not 1 <= request.max_response_bytes <= MAX_PAYLOAD_BYTES:
        raise subject.refuse(
            f"max_response_bytes is {request.max_response_bytes}; the result of a step has at most {MAX_PAYLOAD_BYTES:,}"
        )
    if wrong := [status for status in request.retry_on if not (isinstance(status, int) and 300 <= status < 600)]:
        raise subject.refuse(f"retry_on has {wrong[0]!r}; it takes statuses from 300 to 599")


def _check_url(subject: Subject, url: str, input: Any) -> None:
    head = _template(subject, url, input, "url").head
    parts = urlsplit(head)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise subject.refuse(f"url is {url!r}; it begins with http:// or https:// and a host that has no fields in it")
    if not head[len(f"{parts.scheme}://{parts.netloc}") :].startswith(("/", "?")) and head != url:
        raise subject.refuse(f"url is {url!r}; fields may stand behind the host only, from the first / on")
    if "@" in parts.netloc or parts.fragment or not _VISIBLE.fullmatch(url) or " " in url:
        raise subject.refuse(
            f"url is {url!r}; it has no user, no fragment, no spaces: a password is a Secret(…) in a header"
        )


def _check_header(subject: Subject, name: str, value: Any, input: Any) -> None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _OURS:
        raise subject.refuse(f"header {name!r} cannot be set")
    if isinstance(value, Secret):
        if not _VARIABLE.fullmatch(value.name):
            raise subject.refuse(
                f"header {name!r}: a secret's name is that of an environment variable, not {value.name!r}"
            )
        if value.format.count("{}") != 1 or not _VISIBLE.fullmatch(value.format):
            raise subject.refuse(f"header {name!r}: the secret's format has one {{}} for its value, like 'Bearer {{}}'")
        if value.format != value.format.strip():
            # The HTTP library would refuse the header, with the secret in its message.
            raise subject.refuse(
                f"header {name!r}: the secret's format begins or ends with white space, {value.format!r}"
            )
    elif not isinstance(value, str) or not _VISIBLE.fullmatch(value):
        raise subject.refuse(f"header {name!r} is {value!r}; it is a text of visible ASCII characters, or a Secret(…)")
    else:
        _template(subject, value, input, f"header {name!r}")


def _check_part(subject: Subject, what: str, part: str | None, input: Any) -> None:
    """``part`` is a field of the input, or None."""
    if part is None:
        return
    known = (fields_of(shape_of(input)) or {}) if input is not msgspec.UNSET else {}
    if part not in known:
        raise subject.refuse(
            f"{what} is {part!r}, which is no field of the input; there are {', '.join(known) or 'none'}"
        )


def _template(subject: Subject, text: str, input: Any, what: str) -> Template:
    try:
        return Template(text, input, what)
    except InvalidDefinition as error:
        raise subject.refuse(str(error)) from error


def _need(subject: Subject, module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise subject.refuse(f"it needs the extra `{extra}`: pip install 'ductor-stream[{extra}]'")
