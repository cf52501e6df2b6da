"""What is remembered for a while by fence: results that may be asked for again, stops that came before their task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from ductor_stream.engine.ids import Fence

T = TypeVar("T")


class Recent(Generic[T]):
    """The latest values by fence, bounded in number and size; the oldest are forgotten first. Not thread-safe."""

    def __init__(self, limit: int, bytes_limit: int = 0, size: Callable[[T], int] = lambda _: 0) -> None:
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._size = size
        self._bytes = 0
        self._kept: OrderedDict[Fence, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, fence: Fence) -> T | None:
        """What was put for the fence, unless it is forgotten by now."""
        return self._kept.get(fence)

    def put(self, fence: Fence, value: T) -> None:
        """Remember a value; a later one for the same fence replaces it."""
        if fence in self._kept:
            self.drop(fence)
        self._kept[fence] = value
        if self._bytes_limit:
            self._bytes += self._size(value)
        while len(self._kept) > self._limit or self._bytes > self._bytes_limit:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= self._size(oldest)

    def drop(self, fence: Fence) -> None:
        """Forget the fence now."""
        old = self._kept.pop(fence, None)
        if old is not None:
            self._bytes -= self._size(old)
