"""The configuration of the embedded broker: one node, combined roles, made for development."""

from __future__ import annotations

from collections.abc import Mapping


def broker_properties(port: int, controller_port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The broker's properties; ``extra`` is added last and wins.

    Paths are relative to the broker's working folder: ``log.dirs`` is a list with commas, and the
    file's encoding is Latin-1, so an absolute path of the user's might not survive in it.
    """
    client, controller = f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"{client},{controller}",
        "advertised.listeners": client,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "log",
        # Topics are made on purpose, co-partitioned: one made by a typo must not hide it.
        "auto.create.topics.enable": "false",
        **_SINGLE_NODE,
        **_GROUPS,
        **_RESTART,
        **_SMALL,
        **extra,
    }


_SINGLE_NODE = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# A killed member's partitions move after 6 s. With the new protocol and with share groups the time is the
# broker's and not the client's, and its default is 45 s.
_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.share.min.session.timeout.ms": "3000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "1000",
}

# After kill -9 the broker's old session must run out before it may register again: 9 s by default.
_RESTART = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
}

# The defaults (50 partitions each, 128 MB for the cleaner) are sized for a cluster.
_SMALL = {
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "log.cleaner.dedupe.buffer.size": "8388608",
}


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file (Latin-1 with escapes, as Java reads it)."""
    lines = (f"{_escape(key, _KEY_MARKS)}={_escape(value, _VALUE_MARKS)}\n" for key, value in properties.items())
    return "".join(lines)


# What stands for itself besides letters and digits. A key ends at the first of `= :` or white space.
_KEY_MARKS = frozenset("._-")
_VALUE_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~")


def _escape(text: str, marks: frozenset[str]) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in marks) else _units(char) for char in text)


def _units(char: str) -> str:
    raw = char.encode("utf-16-be")
    return "".join(f"\\u{raw[i : i + 2].hex()}" for i in range(0, len(raw), 2))
