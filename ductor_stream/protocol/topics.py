"""Topic and group names of one namespace, and the alphabets of names."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

import msgspec

from ductor_stream.errors import InvalidConfig, InvalidDefinition
from ductor_stream.ports import INBOUND, Inbound
from ductor_stream.protocol.limits import MAX_NAME, MAX_NAMESPACE, MAX_PREFIX, MAX_TOPIC

NAME_PATTERN = rf"^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}\Z"
_NAME = re.compile(NAME_PATTERN)
_NAMESPACE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAMESPACE}}}")
_PREFIX = re.compile(rf"[A-Za-z0-9_.-]{{0,{MAX_PREFIX}}}")
_TOPIC = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{MAX_TOPIC}}}")


def is_name(text: str) -> bool:
    """Whether this may be the name of a workflow, version, step, queue or signal."""
    return _NAME.match(text) is not None


@functools.lru_cache(maxsize=1_024)
def is_topic(text: str) -> bool:
    """Whether Kafka can have a topic of this name (``Topic.validate`` of Apache Kafka)."""
    return _TOPIC.fullmatch(text) is not None


class Topics(msgspec.Struct, frozen=True):
    """The topics ``<prefix><namespace>.<name>`` and groups of a namespace (one app).

    Raises InvalidConfig where the namespace or the prefix has other characters or more than the contract allows.
    """

    namespace: str
    prefix: str = "ductor."

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise InvalidConfig(
                f"namespace {self.namespace[:80]!r}: use 1 to {MAX_NAMESPACE} characters of [A-Za-z0-9_-]"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidConfig(
                f"topic prefix {self.prefix[:80]!r}: use at most {MAX_PREFIX} characters of [A-Za-z0-9_.-]"
            )

    @property
    def run_events(self) -> str:
        """Starts, signals and commands, from anyone."""
        return f"{self.prefix}{self.namespace}.run-events"

    @property
    def attempt_results(self) -> str:
        """Outcomes and heartbeats, from workers."""
        return f"{self.prefix}{self.namespace}.attempt-results"

    @property
    def wakeups(self) -> str:
        """Hints among coordinators."""
        return f"{self.prefix}{self.namespace}.wakeups"

    @property
    def attempt_control(self) -> str:
        """Orders to stop an attempt; every worker reads it from the end."""
        return f"{self.prefix}{self.namespace}.attempt-control"

    @property
    def run_lifecycle(self) -> str:
        """CloudEvents about runs, for anyone."""
        return f"{self.prefix}{self.namespace}.run-lifecycle"

    @property
    def dead_letters(self) -> str:
        """Records that could not be applied, as they came."""
        return f"{self.prefix}{self.namespace}.dead-letters"

    @property
    def coordinator_group(self) -> str:
        """The consumer group of the namespace's coordinators."""
        return f"{self.prefix}{self.namespace}.coordinator"

    @property
    def event_source(self) -> str:
        """``ce_source`` of the lifecycle events."""
        return f"/ductor/{self.namespace}"

    def worker_group(self, queue: str) -> str:
        """The consumer group of a queue's workers. Raises InvalidDefinition for a queue that is no name."""
        return f"{self.prefix}{self.namespace}.worker.{_queue(queue)}"

    def tasks(self, queue: str) -> str:
        """The topic of a queue. Raises InvalidDefinition for a queue that is no name."""
        return f"{self.prefix}{self.namespace}.tasks.{_queue(queue)}"

    def queue_of(self, topic: str) -> str | None:
        """The queue whose topic this is, or None."""
        start = f"{self.prefix}{self.namespace}.tasks."
        return topic[len(start) :] if topic.startswith(start) and is_name(topic[len(start) :]) else None

    def inbound(self, short: Inbound) -> str:
        """The full name of an inbound topic."""
        return f"{self.prefix}{self.namespace}.{short}"

    @property
    def inbound_names(self) -> tuple[str, ...]:
        """Full names of the inbound topics, in the order of ``INBOUND``."""
        return tuple(map(self.inbound, INBOUND))

    def short(self, full: str) -> Inbound | None:
        """The short name of one of our inbound topics, or None for any other topic."""
        return _shorts(self.prefix, self.namespace).get(full)


def unseen(name: str, hidden: Collection[str]) -> str:
    """What is said of a topic of which nothing is known: it is not there, or ``hidden``, may not be described by us."""
    if name in hidden:
        right = "DESCRIBE on it is not granted (READ and WRITE imply it)"
        return f"topic {name}: Topic authorization failed, {right}: `ductor-stream acls` prints the rights"
    return f"topic {name} is missing: create it by `ductor-stream topics create`"


def misfits(
    topics: Topics, counts: Mapping[str, int], recorded: int | None, hidden: Collection[str] = ()
) -> dict[str, str]:
    """Inbound topics for which run partitions have no owner, by full name, each with what is to be done (protocol 7).

    ``counts`` are the partition counts of the topics that there are, ``recorded`` is N, where the namespace has it;
    ``hidden`` may not be described by us.
    """
    names = topics.inbound_names
    goal = max([*(counts[name] for name in names if name in counts), recorded or 0])
    what = (
        f"the namespace was created with {recorded} run partitions" if goal == recorded else "the inbound topics differ"
    )
    found: dict[str, str] = {}
    for name in names:
        count = counts.get(name)
        if count is None:
            found[name] = unseen(name, hidden)
        elif count < goal:
            raising = f"raise it: kafka-topics.sh --alter --topic {name} --partitions {goal}"
            found[name] = f"topic {name} has {count} partitions and needs {goal} ({what}); {raising}"
    return found


@functools.lru_cache(maxsize=64)
def _shorts(prefix: str, namespace: str) -> dict[str, Inbound]:
    return {f"{prefix}{namespace}.{short}": short for short in INBOUND}


@functools.lru_cache(maxsize=1024)
def _queue(queue: str) -> str:
    if not is_name(queue):
        raise InvalidDefinition(f"queue {queue[:200]!r}: use 1 to {MAX_NAME} characters of [A-Za-z0-9_.-]")
    return queue
