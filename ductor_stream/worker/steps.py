"""What the worker needs to know of a registered step, and of the resources that steps use.

``App`` provides both; these protocols keep the worker apart from how users declare them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol


class Resource(Protocol):
    """Something that is opened before the first attempt and closed after the last one: a pool, a client."""

    name: str
    function: Callable[[], AsyncIterator[Any]]
    """The async generator function that yields it once."""


class RegisteredStep(Protocol):
    """The registered unit of user work."""

    function: Callable[..., Any] | None
    """The user's function; None where the step's worker is elsewhere."""
    executor: Literal["thread", "process"] | None
    """Where a plain function runs; None is a thread."""

    @property
    def name(self) -> str:
        """The name by which tasks ask for it."""

    @property
    def is_async(self) -> bool:
        """Whether it runs on the worker's event loop; else in a thread."""

    @property
    def own_heartbeat(self) -> bool:
        """Whether only the step's own ``heartbeat()`` calls are sent."""

    @property
    def resources(self) -> Mapping[str, Resource]:
        """What its keyword parameters are given, by parameter."""

    def decode_input(self, raw: bytes) -> list[Any]:
        """The arguments out of a task's input. Raises InvalidValue with the path."""

    def encode_output(self, value: Any) -> bytes:
        """JSON of what the function returned. Raises InvalidValue with the path."""

    def invoke(self, arguments: Sequence[Any], resources: Mapping[str, Any]) -> Any:
        """Call the function with decoded arguments and opened resources; the coroutine of an async step."""
