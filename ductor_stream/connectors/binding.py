"""Steps that the executor can run, out of an app's declarations and the worker's settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ductor_stream.app import App
from ductor_stream.config import Settings
from ductor_stream.declarations import Resource, Step
from ductor_stream.errors import InvalidDefinition
from ductor_stream.protocol.topics import Topics
from ductor_stream.work import Connector, HttpStep, KafkaStep


def runnable_steps(app: App, settings: Settings) -> Mapping[str, Step[..., Any]]:
    """The app's steps, its connectors with functions. Raises InvalidDefinition for what these settings do not allow."""
    topics = settings.topics(app.namespace)
    opened: dict[str, Resource[Any]] = {}
    return {
        name: _bound(step, settings, topics, opened) if isinstance(step, Connector) else step
        for name, step in app.steps.items()
    }


def _bound(
    step: Connector[..., Any], settings: Settings, topics: Topics, opened: dict[str, Resource[Any]]
) -> Step[..., Any]:
    twin = copy.copy(step)
    try:
        if isinstance(step, HttpStep):
            # Imported here: its library is an extra.
            from ductor_stream.connectors import http

            twin.function = http.Sender(step)
            client = opened.setdefault("http", Resource("ductor-http", http.open_client, step.origin))
            twin.resources = {"client": client}
        elif isinstance(step, KafkaStep):
            from ductor_stream.connectors import kafka

            kafka.refuse_ours(step.record.topic, topics)
            twin.function = kafka.Publisher(step)
            producer = opened.setdefault("kafka", Resource("ductor-kafka", kafka.opener(settings), step.origin))
            twin.resources = {"producer": producer}
    except InvalidDefinition as error:
        raise InvalidDefinition(f"{step.origin}: {step.name!r}: {error}") from error
    return twin
