"""The checkers of what is deployed, as `make tools` and the test extra bring them, and the chart and the compose file as they are rendered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "ductor-stream"
EVERYTHING = CHART / "ci" / "everything-values.yaml"
KUBERNETES = "1.36.0"
ANSWER_WITHIN_S = 120

SMALLEST: Mapping[str, Any] = {
    "image": {"repository": "shop"},
    "app": "orders:app",
    "kafka": {"bootstrap": "kafka:9092"},
    "coordinator": {"secrets": {"DUCTOR_DATABASE_URL": {"secret": "postgres", "key": "url"}}},
}
"""The values that an installation must give."""


def tool(name: str) -> str:
    """The path of a checker; the test fails, in one line, where it is not installed."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join([str(ROOT / ".tools"), str(beside), os.environ.get("PATH", "")]))
    if found is None:
        pytest.fail(
            f"{name} is not installed: run `make tools`, and see CONTRIBUTING.md for what it needs", pytrace=False
        )
    return found


def run(name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a checker in the project's folder."""
    return subprocess.run(
        [tool(name), *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=ANSWER_WITHIN_S,
        check=False,
    )


def checked(name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a checker that must have nothing to say against it; gives its output."""
    done = run(name, *arguments, environment=environment)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def helm(
    command: str,
    values: Mapping[str, Any] | Path,
    folder: Path,
    *options: str,
    chart: Path = CHART,
    program: str = "helm",
) -> subprocess.CompletedProcess[str]:
    """``helm lint`` or ``helm template`` of a chart with these values; ``folder`` is where they are written."""
    path = values if isinstance(values, Path) else folder / "values.yaml"
    if not isinstance(values, Path):
        path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    name = ("shop",) if command == "template" else ()
    return run(program, command, *name, str(chart), "--values", str(path), "--kube-version", KUBERNETES, *options)


def rendered(values: Mapping[str, Any] | Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """The objects that the chart makes of these values."""
    done = helm("template", values, folder, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def named(objects: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind whose name ends so."""
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    return found


def composed(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The services of the compose file, all references resolved."""
    text = checked("docker-compose", "config", "--format", "json", environment=environment)
    services: dict[str, Any] = json.loads(text)["services"]
    return services
