"""Which queues ``worker`` and ``serve`` run, of one app and of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

Call = Callable[..., tuple[int, str, str]]
APP = """
from ductor_stream import App

app = App("{}")

@app.step(queue="{}")
def work() -> None: ...
"""


@pytest.fixture(autouse=True)
def apps(tmp_path: Path) -> None:
    """Two apps in the working folder, with a queue each."""
    (tmp_path / "post_shop.py").write_text(APP.format("post", "mail"))
    (tmp_path / "office_shop.py").write_text(APP.format("office", "reports"))


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_mistyped_queue_beside_one_that_is_there_is_refused(command: str, call: Call) -> None:
    servers = ("--kafka", "127.0.0.1:1", *(("--database", "postgresql://127.0.0.1:1/x") if command == "serve" else ()))
    wanted = ("--queue", "mail", "--queue", "repots")
    code, _, err = call(command, "post_shop:app", *wanted, *servers)
    assert (code, "app post has no step on queue repots; it has mail" in err) == (2, True)
    code, _, err = call(command, "post_shop:app", "office_shop:app", *wanted, *servers)
    assert code == 2
    assert "the apps have no step on queue repots; they have mail, reports (did you mean reports?)" in err


def test_an_app_without_a_queue_that_is_wanted_runs_none(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    served: dict[str, Any] = {}

    def run(_: object, build: Any) -> None:
        build(CollectorRegistry())

    def worker_service(app: Any, _settings: object, _metrics: object, queues: Any, _concurrency: int) -> None:
        served[app.namespace] = queues

    def serve_build(_apps: object, _settings: object, queues: Any, _concurrency: int) -> Any:
        served.update(queues)
        return lambda _: []

    monkeypatch.setattr("ductor_stream.cli.processes.run_process", run)
    monkeypatch.setattr("ductor_stream.wiring.workers.worker_service", worker_service)
    monkeypatch.setattr("ductor_stream.wiring.serving.serve_build", serve_build)
    apps = ("post_shop:app", "office_shop:app", "--queue", "mail", "--kafka", "127.0.0.1:1")
    assert call("worker", *apps)[0] == 0
    assert served == {"post": ("mail",)}
    assert call("serve", *apps, "--database", "postgresql://127.0.0.1:1/x")[0] == 0
    assert served == {"post": ("mail",), "office": ()}
