"""What an ``App`` declares besides the user's own code: rules and connectors. Part of ``App``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from ductor_stream.definitions import work
from ductor_stream.definitions.signature import Subject
from ductor_stream.rules.table import Parts, Row
from ductor_stream.work import HitPolicy, HttpRequest, HttpStep, KafkaRecord, KafkaStep, Rule

if TYPE_CHECKING:
    from typing import Unpack

    from ductor_stream.declarations import Step, StepArguments

In = TypeVar("In")
Out = TypeVar("Out")


class DeclaresWork(ABC):
    """The half of ``App`` for steps that need no code of the user's."""

    @abstractmethod
    def _declared(self, step: Step[..., Any]) -> None:
        """Take a step in. Raises InvalidDefinition where its name is taken."""

    @abstractmethod
    def _here(self, kind: str, name: str) -> Subject:
        """What is declared, at the user's line."""

    # -- rules ------------------------------------------------------------------------------

    @overload
    def decision_table(
        self,
        name: str,
        *,
        rows: Sequence[Row],
        input: type[In],
        output: type[Out],
        hit: Literal["collect"],
        version: str = "1",
        **options: Unpack[StepArguments],
    ) -> Rule[[In], list[Out]]: ...
    @overload
    def decision_table(
        self,
        name: str,
        *,
        rows: Sequence[Row],
        input: type[In],
        output: type[Out],
        hit: Literal["unique", "first"] = "unique",
        version: str = "1",
        **options: Unpack[StepArguments],
    ) -> Rule[[In], Out]: ...
    @overload
    def decision_table(
        self,
        name: str,
        *,
        rows: Sequence[Row],
        input: Any,
        output: Any,
        hit: HitPolicy = "unique",
        version: str = "1",
        **options: Unpack[StepArguments],
    ) -> Rule[..., Any]: ...
    def decision_table(
        self,
        name: str,
        *,
        rows: Sequence[Row],
        input: Any,
        output: Any,
        hit: Any = "unique",
        version: str = "1",
        **options: Any,
    ) -> Any:
        """Declare a decision table: rows of conditions and results in CEL over the fields of ``input``.

        ``hit`` is DMN's policy: ``unique`` (two rows that hit are an error), ``first``, ``collect`` (a list of all).
        The verdict records ``version``: raise it when the rows change. Workers decide, within 10 s by default; what
        can be known to be wrong is refused here. Raises InvalidDefinition that names the row and the column.
        """
        subject = self._here("decision table", name)
        parts = Parts(name, version, hit, input, output, tuple(rows))
        step = work.decision_table(subject, parts, options)
        self._declared(step)
        return step

    @overload
    def expression(
        self,
        name: str,
        text: str,
        *,
        input: type[In],
        output: type[Out],
        version: str = "1",
        **options: Unpack[StepArguments],
    ) -> Rule[[In], Out]: ...
    @overload
    def expression(
        self, name: str, text: str, *, input: Any, output: Any, version: str = "1", **options: Unpack[StepArguments]
    ) -> Rule[..., Any]: ...
    def expression(self, name: str, text: str, *, input: Any, output: Any, version: str = "1", **options: Any) -> Any:
        """Declare a rule that is one CEL expression over the fields of ``input``. Raises InvalidDefinition."""
        step = work.expression(self._here("expression", name), text, version, (input, output), options)
        self._declared(step)
        return step

    # -- connectors -------------------------------------------------------------------------

    @overload
    def http_step(
        self,
        name: str,
        request: HttpRequest,
        *,
        input: type[In],
        output: type[Out],
        **options: Unpack[StepArguments],
    ) -> HttpStep[[In], Out]: ...
    @overload
    def http_step(
        self, name: str, request: HttpRequest, *, input: type[In], output: None = None, **options: Unpack[StepArguments]
    ) -> HttpStep[[In], None]: ...
    @overload
    def http_step(
        self, name: str, request: HttpRequest, *, output: type[Out], **options: Unpack[StepArguments]
    ) -> HttpStep[[], Out]: ...
    @overload
    def http_step(
        self, name: str, request: HttpRequest, *, input: Any = ..., output: Any = ..., **options: Unpack[StepArguments]
    ) -> HttpStep[..., Any]: ...
    def http_step(
        self, name: str, request: HttpRequest, *, input: Any = msgspec.UNSET, output: Any = None, **options: Any
    ) -> Any:
        """Declare an HTTP request as a step, run by any worker of its queue; its result is the answer's JSON.

        Without ``output`` the answer's body is dropped. One attempt takes at most 30 s by default; redirects are not
        followed. Delivery: at least once, with the same idempotency key each time. Raises InvalidDefinition.
        """
        step = work.http_step(self._here("HTTP step", name), request, (input, output), options)
        self._declared(step)
        return step

    @overload
    def kafka_step(
        self, name: str, record: KafkaRecord, *, input: type[In], **options: Unpack[StepArguments]
    ) -> KafkaStep[[In], None]: ...
    @overload
    def kafka_step(
        self, name: str, record: KafkaRecord, *, input: Any, **options: Unpack[StepArguments]
    ) -> KafkaStep[..., None]: ...
    def kafka_step(self, name: str, record: KafkaRecord, *, input: Any, **options: Any) -> Any:
        """Declare a record for a topic as a step, published by any worker of its queue.

        It ends when the broker has taken the record. Delivery: at least once; the header ``idempotency-key`` is the
        same each time. Topics of the engine are refused. Raises InvalidDefinition.
        """
        step = work.kafka_step(self._here("Kafka step", name), record, input, options)
        self._declared(step)
        return step
