"""A schema registry, for Confluent's wire format: a small port, and its adapter over confluent-kafka's client."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from ductor_stream.errors import InvalidConfig, TransientError

_NOT_FOUND = 404


class SchemaRegistry(Protocol):
    """What the protocol needs of a registry. Both raise TransientError when it cannot be reached."""

    def schema_text(self, schema_id: int) -> str | None:
        """The schema of that id as JSON, or None when the registry does not know it."""

    def schema_id(self, subject: str, schema_text: str) -> int:
        """The id under which the schema is registered, registering it first where it is not."""


class ConfluentRegistry:
    """The registry of Confluent and its like, through ``confluent_kafka.schema_registry``.

    ``config`` is that client's (``url``, and its options for authentication). Raises InvalidConfig when the extra
    ``ductor-stream[registry]`` is not installed or the options are not understood. Schemas are registered under
    their record's full name (``RecordNameStrategy``): several types share a topic.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            raise InvalidConfig(f"a schema registry needs: pip install 'ductor-stream[registry]' ({error})") from error
        try:
            self._client = SchemaRegistryClient.new_client(dict(config))
        except (TypeError, ValueError) as error:
            raise InvalidConfig(f"schema registry: {error}") from error
        # Its connections are closed with the last who uses it: codecs of threads, clients, commands have no end of their own.
        weakref.finalize(self, self._client.close)
        self._schema = Schema
        self._refused = SchemaRegistryError

    def schema_text(self, schema_id: int) -> str | None:
        """The schema of that id as JSON, or None. Raises TransientError."""
        try:
            found = self._client.get_schema(schema_id)
        except self._refused as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            raise TransientError(f"schema registry: {error}") from error
        except Exception as error:
            # The client lets its HTTP library's own errors through; all of them mean that it could not be asked.
            raise TransientError(f"schema registry: {error}") from error
        return str(found.schema_str) if found.schema_type == "AVRO" else None

    def schema_id(self, subject: str, schema_text: str) -> int:
        """Register the schema, or find it registered. Raises TransientError, InvalidConfig when it is refused."""
        try:
            return int(self._client.register_schema(subject, self._schema(schema_text, "AVRO")))
        except self._refused as error:
            if error.http_status_code in (409, 422):
                raise InvalidConfig(f"schema registry refuses the schema of {subject}: {error}") from error
            raise TransientError(f"schema registry: {error}") from error
        except Exception as error:
            raise TransientError(f"schema registry: {error}") from error
