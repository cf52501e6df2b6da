"""``Client`` and ``SyncClient``: how a client is opened out of an app, or a namespace, and its settings."""

from __future__ import annotations

import asyncio
from typing import Self

from ductor_stream.app import App
from ductor_stream.client.calls import ClientCalls, SyncClientCalls
from ductor_stream.client.core import Core
from ductor_stream.client.database_feed import DatabaseFeed
from ductor_stream.client.lifecycle_feed import LifecycleFeed
from ductor_stream.client.ports import Feed
from ductor_stream.config import Settings, load
from ductor_stream.errors import InvalidConfig, UsageError
from ductor_stream.kafka.client_log import ClientLogConfig, KafkaClientLog
from ductor_stream.protocol.registry import ConfluentRegistry
from ductor_stream.protocol.requests import RequestEncoder
from ductor_stream.protocol.topics import Topics


def open_core(app: App | None, namespace: str, settings: Settings) -> Core:
    """A client that is connected. Raises InvalidConfig, LogUnavailable, TopicsNotReady.

    With a database, outcomes are read from Postgres (which is asked when somebody first waits), else from
    ``run-lifecycle``.
    """
    topics = settings.topics(namespace)
    encoder = request_encoder(topics, settings)
    log = open_log(topics, settings, lifecycle=not settings.has_database)
    feed: Feed = LifecycleFeed(log)
    if settings.has_database:
        # Here and not at the top: a client without a database needs no driver for one.
        from ductor_stream.store.outcomes import OutcomeReader

        feed = DatabaseFeed(OutcomeReader(settings.need_database(), topics.namespace))
    return Core(app, encoder, log, feed)


def request_encoder(topics: Topics, settings: Settings) -> RequestEncoder:
    """What encodes starts, signals and commands as the settings want them. Raises InvalidConfig."""
    return RequestEncoder(topics, format=settings.encoding, registry=open_registry(settings))


def open_registry(settings: Settings) -> ConfluentRegistry | None:
    """The registry that is configured, if one is."""
    return ConfluentRegistry(settings.schema_registry) if settings.schema_registry else None


def open_log(topics: Topics, settings: Settings, *, lifecycle: bool) -> KafkaClientLog:
    """A connection to send by, and to follow lifecycle events where ``lifecycle`` says so.

    Raises InvalidConfig, LogUnavailable, TopicsNotReady.
    """
    return KafkaClientLog(
        ClientLogConfig(
            bootstrap=settings.need_kafka(),
            topics=topics,
            options=settings.kafka,
            lifecycle=lifecycle,
            registry=open_registry(settings) if lifecycle else None,
        )
    )


class _Opening:
    """What a client is opened with: an app or a namespace, and settings (read from the environment where not given)."""

    def __init__(self, app: App, settings: Settings | None = None) -> None:
        """Open by ``with`` (``async with`` for Client). Raises InvalidConfig."""
        self._app: App | None = app
        self._namespace = app.namespace
        self._settings = settings if settings is not None else load()
        self._core: Core | None = None

    @classmethod
    def from_env(cls, namespace: str | None = None) -> Self:
        """A client of that namespace without its app: values are not checked before they are sent.

        Kafka and Postgres are those of the environment or of ``ductor.toml``; so is the namespace where none is
        given. Raises InvalidConfig.
        """
        settings = load()
        if not (named := namespace or settings.namespace):
            raise InvalidConfig("which app? Name its namespace, as in from_env('shop'), or set DUCTOR_NAMESPACE")
        return cls.from_settings(named, settings)

    @classmethod
    def from_settings(cls, namespace: str, settings: Settings) -> Self:
        """The same with settings that were read before."""
        client = cls.__new__(cls)
        client._app, client._namespace, client._settings, client._core = None, namespace, settings, None
        return client

    def _open(self) -> None:
        if self._core is not None:
            raise UsageError("the client is open already")
        self._core = open_core(self._app, self._namespace, self._settings)

    def _close(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()


class Client(_Opening, ClientCalls):
    """Starts runs, signals and commands them, and waits for their results, with asyncio.

    ``async with Client(app) as client:``. Needs Kafka alone; with a database URL results come from Postgres, also
    those of runs that others started. Without one, from what was published since it was opened. Keep one per process.
    """

    async def open(self) -> Self:
        """Connect: for code where ``async with`` does not fit. Raises LogUnavailable, TopicsNotReady, InvalidConfig."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: what it opens has still to be closed.
            await asyncio.wait([opening])
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Wait at most ten seconds for what was sent; whoever still waits for a result gets a UsageError."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncClient(_Opening, SyncClientCalls):
    """The same for code without asyncio: ``with SyncClient(app) as client:``."""

    def open(self) -> Self:
        """Connect: for code where ``with`` does not fit. Raises LogUnavailable, TopicsNotReady, InvalidConfig."""
        self._open()
        return self

    def close(self) -> None:
        """Wait at most ten seconds for what was sent; whoever still waits for a result gets a UsageError."""
        self._close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()
