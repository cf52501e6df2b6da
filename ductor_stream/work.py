"""Steps without code of the user's: rules, which are decided by a worker, and connectors, which it runs.

They are steps in every other way: a queue, retries, timeouts, ``run.step``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import msgspec

from ductor_stream.declarations import NOWHERE, Origin, PlainStep, Step
from ductor_stream.engine.binding import Parameters
from ductor_stream.engine.definition import StepDefinition
from ductor_stream.protocol.limits import MAX_PAYLOAD_BYTES
from ductor_stream.rules.table import Row
from ductor_stream.rules.verdict import Hit, HitPolicy, Verdict

__all__ = [
    "RETRIED",
    "Connector",
    "Decider",
    "Hit",
    "HitPolicy",
    "HttpRequest",
    "HttpStep",
    "KafkaRecord",
    "KafkaStep",
    "Row",
    "Rule",
    "Secret",
    "Verdict",
]

P = ParamSpec("P")
R = TypeVar("R")


class Decider(Protocol):
    """What decides: a table or an expression."""

    digest: str

    def decide(self, facts: Any) -> Verdict[Any]:
        """The verdict on these facts. Raises TerminalError."""


class Rule(PlainStep[P, R]):
    """A decision table or an expression, in a version. ``await run.step(it, facts)`` gives its value, typed.

    Its verdict (which rows hit, by which conditions) is recorded as the step's output: a replay takes that, whatever
    the rule says by then. Raises StepError there: RuleError, RowsOverlap, NoRowHit, FactsTooLarge.
    """

    def __init__(
        self,
        definition: StepDefinition,
        parameters: Parameters,
        decider: Decider,
        version: str,
        origin: Origin = NOWHERE,
    ) -> None:
        super().__init__(definition, parameters, decider.decide, origin=origin)
        self.version = version
        self.decider = decider
        self.digest = decider.digest
        """Names its content: other rows, other digest."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Outside a workflow: the value for these facts. Raises TerminalError; inside one CalledOutsideStep."""
        return self.decide(*args, **kwargs).value

    def decide(self, *args: P.args, **kwargs: P.kwargs) -> Verdict[R]:
        """Outside a workflow: the whole verdict, for tests of the rule. Raises as calling it does."""
        return cast("Verdict[R]", self._called(args, kwargs))

    def encode_output(self, value: Any) -> bytes:
        """JSON of a verdict; the plain value of a test's substitute gets one around it. Raises InvalidValue."""
        if not isinstance(value, Verdict):
            value = Verdict(self.name, self.version, self.digest, "replaced", [], value)
        return super().encode_output(value)


# -- connectors -------------------------------------------------------------------------------

RETRIED = frozenset({408, 425, 429, *range(500, 600)})
"""Statuses after which the same request may succeed later: time-outs, too early, too many, and the server's faults."""


class Secret(msgspec.Struct, frozen=True):
    """A reference to a secret: its name is in the definition, its value only in the worker's environment.

    The value is the variable ``name``, or the content of the file that ``name`` with ``_FILE`` gives, read at every
    attempt. ``format`` is what becomes of it: ``"Bearer {}"``.
    """

    name: str
    format: str = "{}"


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an HTTP step sends. ``{field}`` in URL and headers is a field of the step's input, escaped.

    ``url``: http or https, its host without fields. ``headers``: texts, or Secret(…). ``body``: the field of the input
    that is sent as JSON; None sends the whole input with POST, PUT and PATCH, and nothing with others. ``retry_on``:
    statuses that are tried again by the step's policy. ``idempotency_header`` carries the attempt's idempotency key.
    ``max_response_bytes``: a longer answer fails the step.
    """

    method: str
    url: str
    headers: Mapping[str, str | Secret] = {}
    body: str | None = None
    retry_on: Collection[int] = RETRIED
    idempotency_header: str = "Idempotency-Key"
    max_response_bytes: int = MAX_PAYLOAD_BYTES


class KafkaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a Kafka step publishes. ``{field}`` in key and headers is a field of the step's input.

    ``key`` None: the run id. ``value``: the field of the input that is sent as JSON, None sends all of it.
    """

    topic: str
    key: str | None = None
    headers: Mapping[str, str] = {}
    value: str | None = None


class Connector(Step[P, R]):
    """A step that a worker runs by its declaration alone. ``connectors`` makes the function, in the worker."""

    @property
    def is_async(self) -> bool:
        return True


class HttpStep(Connector[P, R]):
    """An HTTP request as a step; its result is the answer's JSON as the declared output.

    Raises StepError of type ``HTTP<status>``, HTTPConnectionError, ResponseTooLarge, InvalidResponse, SecretMissing.
    """

    request: HttpRequest


class KafkaStep(Connector[P, R]):
    """A record for a topic as a step; it ends when the broker has taken the record (acks=all, idempotent).

    Raises StepError of type KafkaRefused (the record can never be taken) or KafkaUndelivered.
    """

    record: KafkaRecord
