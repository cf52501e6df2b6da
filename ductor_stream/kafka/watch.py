"""What the cluster says about the namespace's topics, asked in a thread of its own so that no caller waits for it.

One small request every two seconds tells whether the broker answers (readiness), the topic ids (a topic that was
deleted and re-created has another one: R5b) and the partition counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.options import text_of
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.watch")

ASK_SECONDS = 2.0
"""Between two requests. Two missed answers and a time-out stay below the ten seconds in which readiness turns red."""

ANSWER_SECONDS = 3.0
"""How long the broker may take for one of them."""

HEALTHY_SECONDS = 7.0
"""How old the last answer may be: one late one is no outage, and red comes within ten seconds of the last answer."""

LIST_SECONDS = 15.0
"""Between two listings of all topics of the cluster, which find new task topics; the one request that can be large."""

FRESH_SECONDS = 15.0
"""How old an answer may be that is still passed on as the state of the cluster."""


class TopicState(msgspec.Struct, frozen=True):
    """One topic as the cluster last described it. ``id`` is the topic id in its usual base64 form."""

    id: str
    partitions: int


class Described(NamedTuple):
    """Topics that were asked about: those that exist, and names of those that this principal may not describe."""

    there: dict[str, TopicState]
    hidden: frozenset[str] = frozenset()


def namespace_prefix(topics: Topics) -> str:
    """What the full names of all topics of the namespace begin with."""
    return f"{topics.prefix}{topics.namespace}."


def describe(admin: AdminClient, names: list[str], timeout: float) -> Described:
    """Topics with their ids and partition counts. Raises LogUnavailable."""
    if not names:
        return Described({})
    found: dict[str, TopicState] = {}
    hidden: set[str] = set()
    try:
        for name, future in admin.describe_topics(TopicCollection(names), request_timeout=timeout).items():
            try:
                topic = future.result(timeout + 1)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    hidden.add(name)
                elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[name] = TopicState(str(topic.topic_id), len(topic.partitions))
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not describe the topics: {text_of(error)}") from error
    return Described(found, frozenset(hidden))


def list_names(admin: AdminClient, prefix: str, timeout: float) -> list[str]:
    """Full names of all topics that begin with ``prefix``. Raises LogUnavailable."""
    try:
        return sorted(name for name in admin.list_topics(timeout=timeout).topics if name.startswith(prefix))
    except KafkaException as error:
        raise LogUnavailable(f"Kafka does not list the topics: {text_of(error)}") from error


class ClusterWatch:
    """The cluster's latest answer about the topics of a namespace, and when it came."""

    def __init__(self, admin: AdminClient, bootstrap: str, topics: Topics) -> None:
        self._admin, self._bootstrap = admin, bootstrap
        self._prefix = namespace_prefix(topics)
        self._inbound = [topics.inbound(short) for short in INBOUND]
        self._names = set(self._inbound)
        self.latest: Mapping[str, TopicState] = {}
        """The last answer, however old: another object for every answer. Empty before the first."""
        self.hidden: frozenset[str] = frozenset()
        """Full names of topics that were asked about with it, and may not be described by us."""
        self._answered_at = 0.0
        """0 until there is a first answer."""
        self._asked_at = 0.0
        """When the question was asked that was answered last."""
        self._listed_at: float | None = None
        self._problem = "Kafka was not asked yet"
        self._answered = threading.Condition()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kafka-watch", daemon=True)

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def close(self) -> None:
        """Stop asking; returns when the thread has ended."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_SECONDS * 3)

    def healthy(self) -> bool:
        """Whether the broker answered within the last seven seconds."""
        return bool(self._answered_at) and time.monotonic() - self._answered_at < HEALTHY_SECONDS

    def problem(self) -> str:
        """What was wrong with the last request, empty if nothing was."""
        return self._problem

    def look_again(self) -> None:
        """Something about the topics seems to have changed: ask now, and list them anew."""
        self._listed_at = None
        self._wake.set()

    def states(self, wait: float = 5.0, *, anew: bool = False) -> Mapping[str, TopicState]:
        """The topics of the namespace by full name. Raises LogUnavailable.

        Waits at most ``wait`` seconds for a first answer; with ``anew`` for one to a question asked from now on.
        """
        not_before = time.monotonic() if anew else 0.0
        if anew:
            self._wake.set()
        with self._answered:
            answered = self._answered.wait_for(lambda: self._asked_at >= not_before and self._answered_at, wait)
        if not answered or time.monotonic() - self._answered_at > FRESH_SECONDS:
            raise LogUnavailable(f"Kafka does not answer at {self._bootstrap}: {self._problem or 'no answer yet'}")
        return self.latest

    # -- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._closed:
                return
            try:
                self._ask()
                self._problem = ""
            except LogUnavailable as error:
                if not self._problem:
                    logger.warning("%s", error)
                self._problem = str(error)
            except Exception as error:
                # The watch must outlive whatever the client library comes up with; readiness turns red by the age.
                logger.exception("the watch on Kafka stumbled")
                self._problem = repr(error)
            self._wake.wait(ASK_SECONDS)

    def _ask(self) -> None:
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at > LIST_SECONDS:
            self._listed_at = now  # first: who asks for another look meanwhile gets it
            try:
                self._names = {*self._inbound, *list_names(self._admin, self._prefix, ANSWER_SECONDS)}
            except BaseException:
                self._listed_at = None
                raise
        states, hidden = describe(self._admin, sorted(self._names), ANSWER_SECONDS)
        self._admin.poll(0)
        with self._answered:
            self.latest, self.hidden = states, hidden
            self._asked_at = now
            self._answered_at = time.monotonic()
            self._answered.notify_all()


def admin_call(result: Any, what: str, timeout: float) -> Any:
    """The outcome of an administrative request. Raises LogUnavailable instead of the driver's errors."""
    try:
        return result.result(timeout)
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"{what}: {error}") from error
