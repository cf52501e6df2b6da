"""A log and a database in memory, as a client sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from ductor_stream import App, Run
from ductor_stream.client.core import Core
from ductor_stream.client.database_feed import DatabaseFeed
from ductor_stream.client.lifecycle_feed import LifecycleFeed
from ductor_stream.outcomes import Outcome, Question
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.requests import RequestEncoder
from ductor_stream.protocol.topics import Topics

app = App("shop")


class Order(msgspec.Struct):
    id: str
    total: str = "0"


@app.workflow
async def fulfil(run: Run, order: Order) -> str:
    return order.id


@app.workflow(version="2", name="fulfil")
async def fulfil_2(run: Run, order: Order) -> int:
    return 2


@app.workflow
async def sweep(run: Run) -> list[int]:
    return []


approved = app.signal("approved", bool)


_STATUS = {"run.started": "running", "run.continued": "running"}


class MemoryLog:
    """Keeps what is sent; acknowledges at once, or with ``error``."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.error: Exception | None = None
        self.heard: Callable[[LifecycleEvent], None] | None = None
        self.closed_with: float | None = None

    def send(self, record: Outgoing) -> Future[None]:
        future: Future[None] = Future()
        if self.error is None:
            self.sent.append(record)
            future.set_result(None)
        else:
            future.set_exception(self.error)
        return future

    def follow(self, heard: Callable[[LifecycleEvent], None]) -> None:
        assert self.heard is None
        self.heard = heard

    def close(self, timeout: float) -> None:
        self.closed_with = timeout

    def body(self, place: int = -1) -> dict[str, Any]:
        """A sent record's message."""
        found: dict[str, Any] = msgspec.json.decode(self.sent[place].value)
        return found

    def say(self, type: str, run_id: str = "order-42", execution: int = 1, seq: int = 1, **fields: Any) -> None:
        """Publish a lifecycle event."""
        assert self.heard is not None
        status = None if type == "command.rejected" else _STATUS.get(type, type.removeprefix("run."))
        status = fields.pop("status", status)
        self.heard(LifecycleEvent(run_id, execution, type, "fulfil", "1", seq, 1, "", status, **fields))


class MemoryReader:
    """A database whose rows a test sets."""

    def __init__(self) -> None:
        self.rows: dict[Question, Outcome] = {}
        self.error: Exception | None = None
        self.asked: list[Sequence[Question]] = []
        self.looked = threading.Event()
        self.closed = False

    def outcomes(self, questions: Sequence[Question]) -> Mapping[Question, Outcome]:
        self.asked.append(questions)
        self.looked.set()
        if self.error is not None:
            raise self.error
        return {question: self.rows[question] for question in questions if question in self.rows}

    def close(self) -> None:
        self.closed = True


def core(log: MemoryLog, reader: MemoryReader | None = None, declared: App | None = app) -> Core:
    """A client's inside over memory."""
    feed = LifecycleFeed(log) if reader is None else DatabaseFeed(reader)
    return Core(declared, RequestEncoder(Topics("shop")), log, feed)
