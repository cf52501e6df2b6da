"""How a metric is declared: a descriptor in the class body, and a live metric under the same name on the instance.

The live metrics stand in the instance's own dict, which Python looks at before it asks these (non-data)
descriptors: on the hot path there is nothing but an attribute lookup, and type checkers know the type of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

Metric = TypeVar("Metric", bound=MetricWrapperBase)
Group = Literal["coordinator", "worker"]


class Labelled(dict[str | tuple[str, ...], Metric], Generic[Metric]):
    """A metric with labels: index it by the label's value, or by a tuple of values in the declared order."""

    def __init__(self, make: Callable[[tuple[str, ...]], Metric], drop: Callable[[tuple[str, ...]], None]) -> None:
        super().__init__()
        self._make = make
        self._drop = drop

    def __missing__(self, key: str | tuple[str, ...]) -> Metric:
        made = self[key] = self._make((key,) if isinstance(key, str) else key)
        return made

    def forget(self, key: str | tuple[str, ...]) -> None:
        """Stop reporting these label values: a partition that was given away has no lag here any more."""
        if self.pop(key, None) is not None:
            self._drop((key,) if isinstance(key, str) else key)


class Declaration(Generic[Metric]):
    """One metric: its kind, the processes that count it, its name (without a suffix), its meaning and its labels."""

    def __init__(self, kind: type[Metric], group: Group, name: str, meaning: str, **more: Any) -> None:
        self.kind = kind
        self.group = group
        self.name = name
        self.meaning = meaning
        self.labels: tuple[str, ...] = more.pop("labels", ())
        self._more = more

    @property
    def exposed_name(self) -> str:
        """The name as Prometheus sees it (counters get their suffix)."""
        return f"{self.name}_total" if self.kind is Counter else self.name

    def parent(self, registry: CollectorRegistry) -> Metric:
        """The metric on that registry, made at its first use: two apps of a process share it."""
        # Kept on the registry itself: a dict beside it would keep every registry of a test run alive.
        shared = vars(registry).setdefault("_ductor_metrics", {})
        if self.name not in shared:
            labels = ("app", *self.labels)
            shared[self.name] = self.kind(self.name, self.meaning, labels, registry=registry, **self._more)
        found: Metric = shared[self.name]
        return found


class Single(Declaration[Metric]):
    """A metric that has no label but ``app``."""

    @overload
    def __get__(self, owner: None, kind: type) -> Single[Metric]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Metric: ...
    def __get__(self, owner: object | None, kind: type) -> Metric | Single[Metric]:
        return self  # live ones stand in the instance's own dict, which is looked at first

    def live(self, registry: CollectorRegistry, app: str) -> Metric:
        """The metric of that app."""
        return self.parent(registry).labels(app)


class Family(Declaration[Metric]):
    """A metric with labels of its own."""

    @overload
    def __get__(self, owner: None, kind: type) -> Family[Metric]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Labelled[Metric]: ...
    def __get__(self, owner: object | None, kind: type) -> Labelled[Metric] | Family[Metric]:
        return self

    def live(self, registry: CollectorRegistry, app: str) -> Labelled[Metric]:
        """The metric of that app, to be indexed by label values."""
        parent = self.parent(registry)
        return Labelled(
            lambda values: parent.labels(app, *values),
            lambda values: parent.remove(app, *values),
        )
