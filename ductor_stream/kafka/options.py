"""librdkafka configurations out of the user's options: what may be set, what is ours, and where client logs go.

The user's ``[kafka]`` table takes any librdkafka option, except those on which a rule rests (protocol 29):
they are refused here, with the reason. An option that only one kind of client knows goes to that kind alone.
"""

from __future__ import annotations

import _thread
import difflib
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ductor_stream.errors import InvalidConfig, LogUnavailable
from ductor_stream.kafka import tokens
from ductor_stream.kafka.repeats import REPEATS

Kind = Literal["consumer", "producer", "admin"]
Client = TypeVar("Client")

client_logger = logging.getLogger("ductor_stream.kafka.client")
"""Everything that librdkafka has to say, instead of stderr."""
client_logger.addFilter(REPEATS)

OWNED: Mapping[str, str] = {
    "bootstrap.servers": "it is `bootstrap` (DUCTOR_KAFKA_BOOTSTRAP)",
    "metadata.broker.list": "it is `bootstrap` (DUCTOR_KAFKA_BOOTSTRAP)",
    "acks": "a record that one broker alone has can be lost: always all",
    "request.required.acks": "a record that one broker alone has can be lost: always all",
    "enable.idempotence": "without it a retry of the client doubles or reorders records: always true",
    "enable.gapless.guarantee": "one refused record must not stop the producer: always false",
    "max.in.flight": "fixed by idempotence",
    "max.in.flight.requests.per.connection": "fixed by idempotence",
    "message.send.max.retries": "fixed by idempotence; bound the time by message.timeout.ms",
    "retries": "fixed by idempotence; bound the time by message.timeout.ms",
    "transactional.id": "commits are Postgres's, records are not produced in transactions",
    "partitioner": "a run's home is murmur2 of its id: always murmur2_random",
    "queuing.strategy": "records of a partition keep their order: always fifo",
    "delivery.report.only.error": "dispatch is confirmed by each record's report",
    "enable.auto.commit": "offsets belong to the commit of the state",
    "auto.commit.enable": "offsets belong to the commit of the state",
    "auto.commit.interval.ms": "offsets belong to the commit of the state",
    "enable.auto.offset.store": "offsets belong to the commit of the state",
    "auto.offset.reset": "a lost range is audited, never jumped over",
    "isolation.level": "records of aborted transactions must not start runs: always read_committed",
    "partition.assignment.strategy": "the inbound topics must stay co-partitioned: always range",
    "group.remote.assignor": "the inbound topics must stay co-partitioned: always range",
    "group.protocol": "it is `protocol`: auto, consumer or classic",
    "group.protocol.type": "it is always consumer",
    "group.id": "groups are named by the namespace",
    "group.instance.id": "it is `instance_id`",
    "enable.partition.eof": "the end of a partition is told by it",
    "allow.auto.create.topics": "topics are created by `ductor-stream topics create`, co-partitioned",
    "log.queue": "client logs go to the logger ductor_stream.kafka.client",
    "enabled_events": "set by the library",
    "test.mock.num.brokers": "a mock duplicates and loses records",
}
"""Options that are not passed through, each with its reason."""

_CONSUMER_ONLY = """
    check.crcs coordinator.query.interval.ms fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
    fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms heartbeat.interval.ms max.partition.fetch.bytes
    max.poll.interval.ms queued.max.messages.kbytes queued.min.messages session.timeout.ms
    share.acknowledgement.mode max.poll.records
"""
CONSUMER_ONLY = frozenset(_CONSUMER_ONLY.split())
"""Options that only a consumer knows."""

_PRODUCER_ONLY = """
    batch.num.messages batch.size compression.codec compression.level compression.type delivery.timeout.ms
    linger.ms message.timeout.ms queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms request.timeout.ms sticky.partitioning.linger.ms
"""
PRODUCER_ONLY = frozenset(_PRODUCER_ONLY.split())
"""Options that only a producer knows."""

_COMMON = """
    broker.address.family broker.address.ttl client.dns.lookup client.id client.rack connections.max.idle.ms debug
    enable.metrics.push enable.ssl.certificate.verification https.ca.location https.ca.pem log.connection.close
    log_level message.copy.max.bytes message.max.bytes metadata.max.age.ms metadata.recovery.strategy
    receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
    security.protocol socket.connection.setup.timeout.ms socket.keepalive.enable socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
    ssl.keystore.password statistics.interval.ms topic.metadata.propagation.max.ms
    topic.metadata.refresh.interval.ms
"""
_ALIASES: Mapping[str, str] = {
    "queue.buffering.max.ms": "linger.ms",
    "delivery.timeout.ms": "message.timeout.ms",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
"""One spelling for each option, so that the user's overrides our default."""

_DEFAULTS: Mapping[Kind, Mapping[str, Any]] = {
    "consumer": {
        # Prefetched records are dropped at every seek and pause: keep few, and ask again soon (default: 1 s).
        "queued.min.messages": 20_000,
        "fetch.queue.backoff.ms": 20,
        # Topics that are created late, or deleted, are noticed in seconds, not in five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
    },
    "producer": {
        # A step waits for its record: 2 ms on both sides cost 40 ms in ten steps, and nothing is won by them.
        "linger.ms": 0,
        # How long one dead partition may hold back the confirmation of dispatch; then its records are given back.
        "message.timeout.ms": 30_000,
        # A topic that does not exist is told after 3 s; records of other topics do not wait behind it.
        "topic.metadata.propagation.max.ms": 3_000,
        "topic.metadata.refresh.interval.ms": 10_000,
        # A broker refuses a whole batch when it is over a topic's limit: batches stay far below any sane limit, so
        # that "too large" is said of a record that really is.
        "batch.size": 131_072,
        "queue.buffering.max.messages": 1_000_000,
    },
    "admin": {},
}
_SHARED_DEFAULTS: Mapping[str, Any] = {
    "enable.metrics.push": False,
    "socket.keepalive.enable": True,
    # After an outage the first try comes within 2 s (default: 10 s).
    "reconnect.backoff.max.ms": 2_000,
}
_OWNED_VALUES: Mapping[Kind, Mapping[str, Any]] = {
    "consumer": {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    },
    "producer": {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"},
    "admin": {},
}


RIVAL_SECONDS, RIVAL_EVICTIONS = 15.0, 3
"""Within this time whoever is evicted has joined again, and so has he who evicted him. Brokers that fail over one after the
other evicted a member without a rival twice within 26 s (seen in chaos)."""

EVICTED = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
"""Another process has joined under our stable name, or the group's broker has lost that we did."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that would break a rule. Raises InvalidConfig, which names the option and the reason."""
    for name in options:
        if name in OWNED:
            raise InvalidConfig(f"kafka option {name!r} cannot be set: {OWNED[name]}")
        if (name.endswith("_cb") and name != tokens.OPTION) or callable(options[name]):
            raise InvalidConfig(f"kafka option {name!r} cannot be set: callbacks are the library's")


def client_options(kind: Kind, bootstrap: str, options: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """The librdkafka configuration of one client.

    ``own`` are options that the calling module decides, with underscores for dots (``group_id="g"``). Order of
    precedence: owned, then the user's, then our defaults. Raises InvalidConfig.
    """
    check_options(options)
    elsewhere = (CONSUMER_ONLY if kind != "consumer" else frozenset()) | (
        PRODUCER_ONLY if kind != "producer" else frozenset()
    )
    chosen: dict[str, Any] = {**_SHARED_DEFAULTS, **_DEFAULTS[kind]}
    for name, value in options.items():
        name = _ALIASES.get(name, name)
        if name not in elsewhere:
            chosen[name] = value
    chosen.update(_OWNED_VALUES[kind])
    chosen.update({name.replace("_", "."): value for name, value in own.items() if value is not None})
    chosen["bootstrap.servers"] = bootstrap
    if kind == "consumer" and chosen.get("group.protocol") != "consumer":
        _fit_session(chosen)
    if tokens.OPTION in chosen:
        chosen[tokens.OPTION] = tokens.TokenFunction(chosen[tokens.OPTION])
    return chosen


def _fit_session(chosen: dict[str, Any]) -> None:
    """Who sets only how long a poll may take need not think of the time-out that may not be longer: 45 s by default."""
    longest = str(chosen.get("max.poll.interval.ms", ""))
    if longest.isdigit():
        chosen.setdefault("session.timeout.ms", min(45_000, int(longest)))


def open_client(make: Callable[..., Client], configuration: Mapping[str, Any]) -> Client:
    """Construct a client whose logs go to ``client_logger``.

    Raises InvalidConfig when librdkafka refuses an option, LogUnavailable when a function of the user's brings no token.
    """
    try:
        return make(dict(configuration), logger=client_logger)
    except KafkaException as error:
        if isinstance(brings := configuration.get(tokens.OPTION), tokens.TokenFunction) and "token" in str(error):
            raise LogUnavailable(f"no token for Kafka: {brings.problem}") from error
        raise InvalidConfig(f"kafka: {_explain(error, configuration)}") from error


class EndsApart:
    """Objects whose end nobody waits for: it comes in a thread of its own."""

    _going = False

    def __del__(self) -> None:
        """Once, when nobody knows it any more: the thread is the last who does."""
        if not self._going:
            self._going = True
            # Not threading.Thread, whose start waits for the thread: there are none any more when the interpreter ends.
            with suppress(RuntimeError):  # from Python 3.12 on there are no new threads at all then
                _thread.start_new_thread(_forget, (self,))


def _forget(_: object) -> None:
    """Nothing: what it is called with is let go of when it has returned."""


class Admin(EndsApart, AdminClient):
    """A client for questions. To destroy one of whose brokers has just left the cluster may last for ever (librdkafka 2.16)."""


def open_admin(bootstrap: str, options: Mapping[str, Any]) -> Admin:
    """A client for questions, with the user's options. Raises as ``open_client``."""
    return open_client(Admin, client_options("admin", bootstrap, options))


class HeardProducer(Producer):
    """A producer whose fatal errors go to its ``error_cb``, too: the driver raises them out of the next poll or flush."""

    def __init__(self, configuration: dict[str, Any], **more: Any) -> None:
        super().__init__(configuration, **more)
        self._told: Callable[[KafkaError], None] = configuration["error_cb"]

    def poll(self, timeout: float = -1) -> int:
        """As the driver's."""
        return self._heard(lambda: super(HeardProducer, self).poll(timeout))

    def flush(self, timeout: float = -1) -> int:
        """As the driver's."""
        return self._heard(lambda: super(HeardProducer, self).flush(timeout))

    def _heard(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except KafkaException as error:
            if not is_fatal(error.args[0]):
                raise
            self._told(error.args[0])
            return call()  # a fatal error is raised once


def text_of(error: Exception) -> str:
    """What the driver says, without its wrapping."""
    return str(error.args[0].str()) if isinstance(error, KafkaException) and error.args else str(error)


def in_words(error: KafkaError) -> str:
    """An error for the log; with the remedy where a right is missing."""
    text = str(error.str())
    return f"{text} (`ductor-stream acls` prints the rights)" if "uthorization failed" in text else text


def is_fatal(error: KafkaError) -> bool:
    """Whether a client that says this does nothing more. A consumer tells most such errors by their code alone."""
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


class Evictions:
    """Tells a living rival under our stable name from a name that the group's broker has lost, as by a fail-over of its own.

    Whoever is evicted joins again: it is by somebody who lives if that goes on, quickly, since he does the same.
    """

    def __init__(self) -> None:
        self._at, self._count = -math.inf, 0

    def again(self) -> bool:
        """We were evicted; whether that is the third time in a row, each within ``RIVAL_SECONDS`` of the one before."""
        last, self._at = self._at, time.monotonic()
        self._count = self._count + 1 if self._at - last < RIVAL_SECONDS else 1
        return self._count >= RIVAL_EVICTIONS


def evicted(group: str) -> str:
    """What is told of a process whose name another has taken."""
    return (
        f"another process has joined group {group} under our DUCTOR_KAFKA_INSTANCE_ID, so this one ends: "
        "no two that run at a time may have the same"
    )


def _explain(error: KafkaException, configuration: Mapping[str, Any]) -> str:
    """librdkafka's message, with the nearest known name when an option does not exist."""
    text = str(error.args[0].str() if error.args and hasattr(error.args[0], "str") else error)
    known = sorted(CONSUMER_ONLY | PRODUCER_ONLY | frozenset(_COMMON.split()))
    for name in configuration:
        if "No such configuration property" in text and f'"{name}"' in text:
            near = difflib.get_close_matches(name, known, n=1)
            return text + (f" (did you mean {near[0]!r}?)" if near else "")
    return text
