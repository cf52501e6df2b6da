"""Reading the ``dead-letters`` topic from its beginning to its end, without a group, and sending letters again."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from ductor_stream.cli.connection import namespace_of
from ductor_stream.cli.failures import NotFound
from ductor_stream.config import Settings
from ductor_stream.engine.events import CommandReceived, SignalReceived
from ductor_stream.errors import DataError, LogUnavailable, StoreUnavailable, TopicsNotReady
from ductor_stream.kafka.options import client_options, open_client
from ductor_stream.ports import Outgoing, Received
from ductor_stream.protocol import headers
from ductor_stream.protocol.inbound import ForRun, InboundDecoder
from ductor_stream.protocol.requests import Request, RequestEncoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.wiring.clients import open_registry

_ASK_WITHIN_S = 10.0
_SILENCE_S = 10.0
"""A broker that has more and gives nothing for so long is away."""
_OURS = frozenset(
    {
        headers.REASON,
        headers.ERROR,
        headers.SOURCE_TOPIC,
        headers.SOURCE_PARTITION,
        headers.SOURCE_OFFSET,
        headers.REFERENCE,
        headers.NULL_KEY,
        headers.NULL_VALUE,
    }
)
_PAYLOAD = "select p.body from eec_payload p join eec_namespace n using (ns) where n.name = %s and p.id = %s"


class Letter(msgspec.Struct, frozen=True):
    """A dead letter. ``id`` is its place in the topic; ``source`` the place where the record stood."""

    id: str
    at: datetime
    reason: str
    error: str
    source_topic: str
    source: str
    key: bytes | None
    value: bytes | None
    reference: str | None
    headers: list[tuple[str, bytes]]

    def shown(self) -> dict[str, Any]:
        """The letter for people and programs; bytes that are no text as base64."""
        return {
            "id": self.id,
            "at": self.at,
            "reason": self.reason,
            "error": self.error,
            "source_topic": self.source_topic,
            "source": self.source,
            "key": text(self.key),
            "value": text(self.value),
            "reference": self.reference,
            "size_bytes": len(self.value or b""),
        }


def text(raw: bytes | None) -> str | None:
    """Bytes as text, or as ``base64:…`` where they are none."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()


def read_letters(settings: Settings, topics: Topics) -> Iterator[Letter]:
    """All letters that are kept, in order per partition. Raises LogUnavailable, TopicsNotReady."""
    group = f"ductor-letters-{uuid.uuid4().hex}"  # never joined: a consumer must have a name
    options = client_options("consumer", settings.need_kafka(), settings.kafka, group_id=group)
    consumer = open_client(Consumer, options)
    try:
        left = _places(consumer, topics.dead_letters)
        consumer.assign([TopicPartition(topics.dead_letters, number, low) for number, (low, _) in left.items()])
        ends = {number: high for number, (low, high) in left.items() if high > low}
        while ends:
            message = consumer.poll(_SILENCE_S)
            if message is None or message.error() is not None:
                reason = "it gives nothing" if message is None else message.error().str()  # type: ignore[union-attr]
                raise LogUnavailable(f"Kafka cannot be read: {reason}")
            number, offset = message.partition(), message.offset()
            assert number is not None and offset is not None
            if offset + 1 >= ends.get(number, 0):
                ends.pop(number, None)
            yield _letter(message)
    except KafkaException as error:
        raise LogUnavailable(f"Kafka cannot be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _places(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    try:
        found = consumer.list_topics(topic, timeout=_ASK_WITHIN_S).topics[topic]
    except KafkaException as error:
        raise LogUnavailable(f"Kafka does not answer: {error.args[0].str()}") from error
    if found.error is not None:
        raise TopicsNotReady(f"{topic}: {found.error.str()}")
    return {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ASK_WITHIN_S)
        for number in sorted(found.partitions)
    }


def _letter(message: Message) -> Letter:
    given: Any = message.headers()
    found: list[tuple[str, bytes]] = [(name, value or b"") for name, value in given or ()]
    names = {name for name, _ in found}

    def told(name: str) -> str:
        return headers.text(found, name) or ""

    _, at_ms = message.timestamp()
    return Letter(
        id=f"{message.partition()}:{message.offset()}",
        at=datetime.fromtimestamp(at_ms / 1000, UTC),
        reason=told(headers.REASON),
        error=told(headers.ERROR),
        source_topic=told(headers.SOURCE_TOPIC),
        source=f"{told(headers.SOURCE_PARTITION)}:{told(headers.SOURCE_OFFSET)}",
        key=None if headers.NULL_KEY in names else _bytes(message.key()),
        value=None if headers.NULL_VALUE in names or headers.REFERENCE in names else _bytes(message.value()),
        reference=told(headers.REFERENCE) or None,
        headers=[(name, value) for name, value in found if name not in _OURS],
    )


def _bytes(raw: str | bytes | None) -> bytes:
    return raw.encode() if isinstance(raw, str) else raw or b""


def original(letter: Letter, settings: Settings) -> Outgoing:
    """The record as it came, for the topic where it stood. Raises NotFound, StoreUnavailable, InvalidConfig."""
    if letter.key is None:
        raise NotFound(f"letter {letter.id} came without a key: no run can be told from it")
    value = _payload(letter, settings) if letter.reference is not None else letter.value
    if value is None:
        raise NotFound(f"letter {letter.id} came without a value: there is nothing to send again")
    return Outgoing(letter.source_topic, letter.key, value, letter.headers)


def again(letter: Letter, settings: Settings) -> Outgoing:
    """What a replay sends: the record as it came. One that expired gets another id, always the same for a letter.

    Its own id is known, lest a late duplicate of it be applied: that would be ignored.
    Raises NotFound, StoreUnavailable, InvalidConfig, TransientError (a schema registry is away).
    """
    record = original(letter, settings)
    if letter.reason != "expired":
        return record
    topics = settings.topics(namespace_of(settings))
    received = Received("run-events", 0, 0, record.key, record.value, record.headers)
    try:
        message = InboundDecoder(topics, open_registry(settings)).decode(received, "")
    except DataError as error:
        raise NotFound(f"letter {letter.id} cannot be read: {error}") from error
    event = message.event if isinstance(message, ForRun) else None
    id = "replayed-" + hashlib.sha256(f"{letter.id} {letter.at.isoformat()} {letter.source}".encode()).hexdigest()
    match event:
        case SignalReceived():
            anew: Request = msgspec.structs.replace(event, signal_id=id)
        case CommandReceived():
            anew = msgspec.structs.replace(event, command_id=id)
        case _:
            return record
    value = RequestEncoder(topics).encode(message.run_id, anew).value
    return msgspec.structs.replace(record, value=value)


def _payload(letter: Letter, settings: Settings) -> bytes:
    """The value of a record that was too large to be copied: it is kept in Postgres."""
    try:
        with psycopg.connect(settings.need_database(), autocommit=True) as connection:
            row = connection.execute(_PAYLOAD, (namespace_of(settings), letter.reference)).fetchone()
    except psycopg.Error as error:
        raise StoreUnavailable(f"Postgres cannot be read: {' '.join(str(error).split())}") from error
    if row is None:
        raise NotFound(f"the value of letter {letter.id} is no longer kept")
    return bytes(row[0])
