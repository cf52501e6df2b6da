"""A member of the coordinators' group as a process of its own, to be killed: prints what it holds, one line a change.

Arguments: bootstrap, namespace, protocol, instance id (or ``-``).
"""

from __future__ import annotations

import sys

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.log import KafkaLog, KafkaLogConfig
from ductor_stream.protocol.topics import Topics


class Printer:
    """An ``Ownership`` that prints what it holds."""

    def __init__(self) -> None:
        self.holds: set[int] = set()

    def assigned(self, partitions: frozenset[int]) -> None:
        self.holds |= partitions
        print(sorted(self.holds), flush=True)

    def revoked(self, partitions: frozenset[int]) -> None:
        self.holds -= partitions
        print(sorted(self.holds), flush=True)

    def lost(self, partitions: frozenset[int]) -> None:
        self.revoked(partitions)


def main(bootstrap: str, namespace: str, protocol: str, instance_id: str) -> None:
    log = KafkaLog(
        KafkaLogConfig(
            bootstrap=bootstrap,
            topics=Topics(namespace),
            protocol=protocol,  # type: ignore[arg-type]
            instance_id=None if instance_id == "-" else instance_id,
        )
    )
    log.subscribe(Printer())
    while True:
        try:
            log.poll(0.1, 100)
        except LogUnavailable as error:
            print(f"# {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
