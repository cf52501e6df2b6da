"""Running steps in a test: the real function, or what the test put in its place."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from ductor_stream.app import App
from ductor_stream.declarations import Resource, Step
from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.ids import Fence, idempotency_key
from ductor_stream.engine.state import Node
from ductor_stream.errors import InvalidValue, UsageError
from ductor_stream.protocol.worker import Task
from ductor_stream.work import Connector
from ductor_stream.worker.context import CurrentAttempt, StopFlag, running_attempt
from ductor_stream.worker.outcomes import Outcome, raised, rejected, returned


class _Trial:
    """The attempt as ``current_attempt()`` shows it."""

    def __init__(self, task: Task, now: int) -> None:
        self.task = task
        self.started_ms = now
        self.stop = StopFlag()


class Steps:
    """Executes attempts one after the other, in the test's own event loop."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._fakes: dict[str, Callable[..., Any]] = {}
        self._resources: dict[str, Any] = {}
        self._opened: list[AsyncIterator[Any]] = []

    def replace(self, original: Step[..., Any] | Resource[Any], substitute: Any) -> None:
        """Use a function in place of a step, or a value in place of a resource."""
        if isinstance(original, Step):
            if not callable(substitute):
                raise UsageError(f"step {original.name!r} is replaced by a function, not by {substitute!r}")
            self._fakes[original.name] = substitute
        else:
            self._resources[original.name] = substitute

    async def execute(self, run_id: str, execution: int, node: Node, now: int) -> AttemptFinished:
        """Run one attempt to its end, as a worker does, and report it."""
        outcome = await self._outcome(run_id, execution, node, now)
        return AttemptFinished(
            execution, node.node_id, node.generation, outcome.word, outcome.output, outcome.failure, "test"
        )

    async def _outcome(self, run_id: str, execution: int, node: Node, now: int) -> Outcome:
        step = self._app.steps.get(node.name)
        if step is None:
            return rejected("step_unknown", f"step {node.name!r} is not declared in this app")
        if step.function is None and step.name not in self._fakes:
            # The test's fault and no failure of an attempt, which would be tried again.
            kind = "a connector, and tests reach nothing outside" if isinstance(step, Connector) else "external"
            raise UsageError(f"step {step.name!r} is {kind}: give the test a function for it by env.replace(…)")
        try:
            arguments = step.decode_input(node.input)
        except InvalidValue as error:
            return rejected("input_not_decodable", str(error))
        task = self._task(run_id, execution, node, now)
        token = running_attempt.set(CurrentAttempt(_Trial(task, now), lambda trial, details: None))
        try:
            return returned(step, await self._call(step, arguments))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its attempt's failure
            return raised(error)
        finally:
            running_attempt.reset(token)

    async def _call(self, step: Step[..., Any], arguments: list[Any]) -> Any:
        fake = self._fakes.get(step.name)
        if fake is not None:
            positional, named = step.parameters.call(arguments)
            result = fake(*positional, **named)
        else:
            resources = {name: await self._resource(used) for name, used in step.resources.items()}
            result = step.invoke(arguments, resources)
        return await result if inspect.isawaitable(result) else result

    async def _resource(self, resource: Resource[Any]) -> Any:
        if resource.name not in self._resources:
            opened = resource.function()
            self._resources[resource.name] = await anext(opened)
            self._opened.append(opened)
        return self._resources[resource.name]

    async def close(self) -> None:
        """Close the resources that were opened."""
        for opened in reversed(self._opened):
            await anext(opened, None)
        self._opened.clear()

    def _task(self, run_id: str, execution: int, node: Node, now: int) -> Task:
        key = idempotency_key(self._app.namespace, run_id, node.key_execution or execution, node.node_id)
        options = node.options
        return Task(
            fence=Fence(run_id, execution, node.node_id, node.generation),
            attempt=node.attempt,
            step=node.name,
            input=node.input,
            idempotency_key=key,
            dispatched_at=now,
            start_to_close_ms=options.start_to_close_ms if options is not None else None,
            schedule_to_start_ms=None,
            deadline_at=None,
            heartbeat_timeout_ms=options.silence_ms if options is not None else 10_000,
            heartbeat_details=node.details,
            requires=(),
            results_topic="",
            context={},
        )
