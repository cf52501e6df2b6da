"""The workflow definitions that this owner has code for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductor_stream.engine.definition import WorkflowDefinition


class Definitions:
    """Definitions by workflow and version. ``latest`` names the version that a start without one is pinned to."""

    def __init__(self, definitions: Iterable[WorkflowDefinition], latest: Mapping[str, str]) -> None:
        self.by_version = {(d.name, d.version): d for d in definitions}
        self._latest = dict(latest)

    def find(self, workflow: str, version: str) -> WorkflowDefinition | None:
        """The definition, or None. An empty version is the last one declared."""
        return self.by_version.get((workflow, version or self.version_of(workflow)))

    def version_of(self, workflow: str) -> str:
        """The version that a start without one gets, or an empty string when the workflow is not known here."""
        return self._latest.get(workflow, "")

    def declared(self) -> list[tuple[str, str, str]]:
        """(workflow, version, digest) of all."""
        return [(d.name, d.version, d.digest) for d in self.by_version.values()]
