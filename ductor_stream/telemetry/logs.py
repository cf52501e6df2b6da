"""Structured logs: events with bound keys (``run_id``, ``node_id``, ``generation``), as console lines or JSON.

Modules call ``get_logger(__name__)``. What they log goes through the standard library's loggers under
``ductor_stream``, and nothing here is global until ``configure`` is called, which only the command line does: an
embedding program keeps its root logger, its handlers and its own structlog configuration, and sees our events as
ordinary records (the message reads ``event key=value``, the record's attribute ``ductor`` has the keys).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from ductor_stream.engine.ids import Fence

LogFormat = Literal["console", "json"]
FORMATS: tuple[LogFormat, ...] = ("console", "json")
PAYLOAD_KEYS = frozenset({"input", "output", "payload", "details", "result", "value"})
"""Keys that hold what users send: shown at DEBUG only, since orders and cards do not belong in logs."""

EventDict = MutableMapping[str, Any]


def _without_payloads(logger: Any, method: str, event: EventDict) -> EventDict:
    if method != "debug":
        for key in PAYLOAD_KEYS & event.keys():
            del event[key]
    return event


def _as_record(logger: Any, method: str, event: EventDict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Hand over to the standard library: a readable message, and the keys for formatters that know them."""
    exc_info = event.pop("exc_info", None)
    keys = {key: value for key, value in event.items() if key != "event"}
    text = str(event.get("event", ""))
    shown = " ".join(f"{key}={value}" for key, value in keys.items())
    extra = {"ductor": {"event": text, **keys}}
    # The text is an argument, not the format: a percent sign in a run id is no placeholder.
    return ("%s", f"{text} {shown}".rstrip()), {"extra": extra, "exc_info": exc_info}


_PROCESSORS: list[Any] = [structlog.stdlib.filter_by_level, _without_payloads, _as_record]


def get_logger(name: str, **bound: Any) -> structlog.stdlib.BoundLogger:
    """A logger under that name with these keys bound to each of its events. Costs little where the level is off."""
    wrapped = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, wrapped.bind(**bound))


def keys_of(fence: Fence) -> dict[str, Any]:
    """The keys of a line about an attempt, the same in every process: who looks for one finds all that was said of it."""
    return {"run_id": fence.run_id, "node_id": fence.node_id, "generation": fence.generation}


class _Formatter(logging.Formatter):
    """Any record, ours or a user's, as one set of keys: time, level, logger, event, then what was bound."""

    def keys(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        ours = getattr(record, "ductor", None)
        keys = dict(ours) if isinstance(ours, dict) else {"event": record.getMessage()}
        head = {"time": at.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            keys["exception"] = self.formatException(record.exc_info)
        return {**head, **keys}


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; what JSON does not know is written as its ``repr``."""
        return msgspec.json.encode(self.keys(record), enc_hook=repr).decode()


class ConsoleFormatter(_Formatter):
    """One line for people, a traceback below it."""

    def __init__(self, colors: bool) -> None:
        super().__init__()
        self._renderer = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", pad_event_to=0)

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, coloured where the stream is a terminal."""
        keys = self.keys(record)
        keys["time"] = keys["time"][11:-1]
        return str(self._renderer(None, record.levelname.lower(), keys))


Configured = tuple[LogFormat, str]
"""What ``configure`` was given: form and level."""

_configured: list[Configured] = []


def configured() -> Configured | None:
    """How this process was configured, for processes that it starts; None where the program has its own way."""
    return _configured[-1] if _configured else None


def configure(form: LogFormat = "console", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send everything that is logged in this process to the stream (standard error). For whole programs only.

    Raises ValueError for an unknown level.
    """
    out = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter(out.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _configured[:] = [(form, level)]
    if not structlog.is_configured():
        # Steps of users that log by structlog would otherwise print to standard output, which has our answers.
        structlog.configure(
            processors=_PROCESSORS,
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
