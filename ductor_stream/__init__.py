"""Durable workflows for teams on Kafka: what users write and catch.

``Client`` and what belongs to workers is imported when it is first used, so that a module of workflows and
steps does not load the drivers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ductor_stream.app import App
from ductor_stream.declarations import Resource, Signal, Step, Use, Workflow
from ductor_stream.definitions.policy import Retry
from ductor_stream.engine.planners.run import Run
from ductor_stream.errors import (
    ChildError,
    DuctorError,
    InvalidConfig,
    InvalidDefinition,
    InvalidValue,
    OutcomeError,
    PayloadTooLarge,
    RetryableError,
    RunCancelled,
    RunExists,
    RunFailed,
    RunNotFound,
    RunTerminated,
    RunTimedOut,
    StepCancelled,
    StepError,
    StepTimeout,
    TerminalError,
    TransientError,
    UsageError,
)
from ductor_stream.outcomes import RunDescription
from ductor_stream.work import HttpRequest, HttpStep, KafkaRecord, KafkaStep, Row, Rule, Secret, Verdict

if TYPE_CHECKING:
    from ductor_stream.client.handle import RunHandle
    from ductor_stream.client.sync import SyncRunHandle
    from ductor_stream.wiring.clients import Client, SyncClient
    from ductor_stream.worker.context import CurrentAttempt, current_attempt

__all__ = [
    "App",
    "ChildError",
    "Client",
    "CurrentAttempt",
    "DuctorError",
    "HttpRequest",
    "HttpStep",
    "InvalidConfig",
    "InvalidDefinition",
    "InvalidValue",
    "KafkaRecord",
    "KafkaStep",
    "OutcomeError",
    "PayloadTooLarge",
    "Resource",
    "Retry",
    "RetryableError",
    "Row",
    "Rule",
    "Run",
    "RunCancelled",
    "RunDescription",
    "RunExists",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "RunTerminated",
    "RunTimedOut",
    "Secret",
    "Signal",
    "Step",
    "StepCancelled",
    "StepError",
    "StepTimeout",
    "SyncClient",
    "SyncRunHandle",
    "TerminalError",
    "TransientError",
    "UsageError",
    "Use",
    "Verdict",
    "Workflow",
    "current_attempt",
]

_LATER = {
    "Client": "ductor_stream.wiring.clients",
    "CurrentAttempt": "ductor_stream.worker.context",
    "RunHandle": "ductor_stream.client.handle",
    "SyncClient": "ductor_stream.wiring.clients",
    "SyncRunHandle": "ductor_stream.client.sync",
    "current_attempt": "ductor_stream.worker.context",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
