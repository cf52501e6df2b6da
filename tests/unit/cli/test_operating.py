"""``replay``, ``topics plan``, ``config show``, ``env``, ``dev status|stop|reset``: as far as no server is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ductor_stream.cli.connection import DevServers, remember
from ductor_stream.cli.deployments import described
from ductor_stream.cli.loading import load_app
from ductor_stream.config_origins import origins
from ductor_stream.dev import binaries
from ductor_stream.dev.lock import FolderLock
from ductor_stream.engine.events import RunStarted
from ductor_stream.engine.state import NodeCreated, Record
from ductor_stream.store.inspection import pooling_of
from ductor_stream.store.rows import Declared, OpenVersion
from ductor_stream.testing.replay import export_history

Call = Callable[..., tuple[int, str, str]]

SHOP = """
from ductor_stream import App, Run

app = App("shop")

@app.step(queue="payments")
async def charge(order: str) -> str:
    return order

@app.workflow
async def fulfil(run: Run, order: str) -> str:
    return await run.step(charge, order)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


# -- replay -------------------------------------------------------------------------------------------


def history(step: str = "charge") -> bytes:
    start = RunStarted(workflow="fulfil", version="1", input=b'"o-1"', start_id="s-1")
    created = NodeCreated("1", "step", step, b'["o-1"]')
    return export_history("order-1", [Record(execution=1, seq=1, now=1_000, event=start, decisions=[created])])


def test_a_history_that_todays_code_decides_too(shop: Path, call: Call) -> None:
    (shop / "one.json").write_bytes(history())
    code, out, _ = call("replay", "shop:app", "one.json")
    assert (code, out.split()) == (0, ["same", "one.json", "1", "of", "1", "histories", "replay"])


def test_a_history_that_it_decides_otherwise_is_shown_with_both_sides(shop: Path, call: Call) -> None:
    (shop / "one.json").write_bytes(history())
    (shop / "two.json").write_bytes(history("ship"))
    code, out, _ = call("replay", "shop:app", "one.json", "two.json")
    assert code == 1
    assert "1 of 2 histories replay" in out
    code, out, _ = call("replay", "shop:app", "one.json", "two.json", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert [each["ok"] for each in found["histories"]] == [True, False]
    differing = found["histories"][1]
    assert differing["code"] == "nondeterminism"
    assert "history has" in differing["message"]
    assert "ship" in differing["message"]
    assert "this code has" in differing["message"]
    assert "charge" in differing["message"]


def test_what_is_no_history_is_told_in_a_line(shop: Path, call: Call) -> None:
    (shop / "x.json").write_text("{}")
    code, _, err = call("replay", "shop:app", "x.json")
    assert (code, "x.json: not an exported history" in err, "Traceback" in err) == (2, True, False)
    assert call("replay", "shop:app", "none.json")[0] == 2


# -- topics plan --------------------------------------------------------------------------------------


def test_the_plan_states_everything_in_numbers(shop: Path, call: Call) -> None:
    code, out, _ = call("topics", "plan", "shop:app", "--partitions", "6", "--json")
    assert code == 0
    found = {each["topic"]: each for each in json.loads(out)}
    assert len(found) == 7
    events = found["ductor.shop.run-events"]
    assert (events["partitions"], events["replication_factor"], events["co_partitioned"]) == (6, 3, True)
    assert events["config"]["min.insync.replicas"] == "2"
    assert events["config"]["retention.ms"] == "604800000"
    assert (found["ductor.shop.tasks.payments"]["partitions"], found["ductor.shop.dead-letters"]["partitions"]) == (
        6,
        1,
    )
    assert not found["ductor.shop.tasks.payments"]["co_partitioned"]
    code, out, _ = call("topics", "plan", "shop:app", "--replicas", "1")
    assert code == 0
    assert "ductor.shop.attempt-results" in out
    assert "min.insync.replicas" in out


# -- config show --------------------------------------------------------------------------------------


def test_every_setting_has_its_source(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ductor.toml").write_text('namespace = "shop"\n[kafka]\nbootstrap = "b:1"\n"linger.ms" = 5\n')
    (tmp_path / "password").write_text("tops3cret\n")
    monkeypatch.setenv("DUCTOR_KAFKA_SASL_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("DUCTOR_DATABASE_URL", "postgresql://me:tops3cret@db/shop")
    monkeypatch.setenv("DUCTOR_NAMESPACE", "other")
    code, out, _ = call("config", "show", "--json")
    assert (code, "tops3cret" in out) == (0, False)
    found = {each["setting"]: (each["value"], each["source"]) for each in json.loads(out)}
    assert found["namespace"] == ("other", "DUCTOR_NAMESPACE")
    assert found["kafka_bootstrap"] == ("b:1", "ductor.toml")
    assert found["kafka.linger.ms"] == ("5", "ductor.toml")
    assert found["kafka.sasl.password"] == ("***", "DUCTOR_KAFKA_SASL_PASSWORD_FILE")
    assert found["database_url"] == ("postgresql://me:***@db/shop", "DUCTOR_DATABASE_URL")
    assert found["topic_prefix"] == ("ductor.", "default")
    assert "tops3cret" in call("config", "show", "--no-redact")[1]
    assert "tops3cret" not in call("config", "show", "--redact")[1]


def test_origins_of_nothing_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert origins({"DUCTOR_NAMESPACE": ""}) == {}


# -- env, dev status, dev stop, dev reset -------------------------------------------------------------


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A data directory as a ``dev`` leaves it, with this process as the one that runs on it."""
    data = tmp_path / ".ductor"
    (data / "kafka").mkdir(parents=True)
    (data / "kafka/log").write_text("x")
    remember(DevServers("127.0.0.1:1", "postgresql://me:it's@h/db", str(data), "shop", os.getpid()))
    return data


def test_without_a_dev_its_commands_say_so(tmp_path: Path, call: Call) -> None:
    code, _, err = call("env")
    assert (code, "no `ductor-stream dev` runs in" in err) == (3, True)
    code, out, _ = call("dev", "status", "--json")
    assert (code, json.loads(out)["state"]) == (3, "stopped")
    code, out, _ = call("dev", "stop")
    assert (code, out) == (0, "nothing runs in .ductor\n")
    assert call("dev", "reset")[:2] == (0, "there is nothing in .ductor\n")


def test_beside_a_dev_that_runs(dev: Path, call: Call) -> None:
    lock = FolderLock(dev / "lock")
    lock.acquire()
    try:
        code, out, _ = call("env")
        assert code == 0
        assert out.splitlines() == [
            "export DUCTOR_KAFKA_BOOTSTRAP=127.0.0.1:1",
            "export DUCTOR_DATABASE_URL='postgresql://me:it'\"'\"'s@h/db'",
            "export DUCTOR_NAMESPACE=shop",
            "export BROKER=127.0.0.1:1",
        ]
        assert json.loads(call("env", "--json")[1])["DUCTOR_NAMESPACE"] == "shop"
        code, out, _ = call("dev", "status", "--json")
        assert (code, json.loads(out)["state"], json.loads(out)["namespace"]) == (0, "running", "shop")
        shown = {each["setting"]: each["source"] for each in json.loads(call("config", "show", "--json")[1])}
        assert shown["kafka_bootstrap"] == shown["namespace"] == "ductor-stream dev"
        code, _, err = call("dev", "reset", "--yes")
        assert (code, "`ductor-stream dev stop` first" in err) == (4, True)
        (dev / "dev.json").unlink()  # as long as it is not ready
        code, out, _ = call("dev", "status", "--json")
        assert (code, json.loads(out)["state"], json.loads(out)["pid"]) == (1, "starting", os.getpid())
    finally:
        lock.release()
    assert dev.exists()


def test_reset_deletes_what_is_ours_and_nothing_else(dev: Path, call: Call) -> None:
    code, _, err = call("dev", "reset")
    assert (code, "give --yes" in err) == (2, True)
    (dev / "notes.txt").write_text("mine")
    code, out, _ = call("dev", "reset", "--yes", "--json")
    assert code == 0
    assert sorted(json.loads(out)["deleted"]) == ["dev.json", "kafka"]
    assert [path.name for path in dev.iterdir() if path.name != "lock"] == ["notes.txt"]


def test_reset_deletes_what_demos_have_kept_but_not_under_one_that_runs(dev: Path, call: Call) -> None:
    demo = dev / "demo-2"
    (demo / "postgres").mkdir(parents=True)
    (demo / "worker-1.log").write_text("x")
    lock = FolderLock(demo / "lock")
    lock.acquire()
    code, _, err = call("dev", "reset", "--yes")
    assert (code, f"demo-2 is in use by process {os.getpid()}" in err) == (4, True)
    lock.release()
    assert call("dev", "reset", "--yes")[0] == 0
    assert not dev.exists()


def test_reset_deletes_what_was_fetched_for_all_when_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr("ductor_stream.dev.binaries._SHARED_CACHES", [tmp_path / "shared"])
    [own, *_] = [binaries._copy_name(folder) for folder in binaries.installations()]
    for name in ("cache/kafka-4.3.1", "cache/aot", "cache/theirs", f"shared/{own}", "shared/postgres-1f"):
        (tmp_path / name).mkdir(parents=True)
    (cache / "fetch.lock").touch()
    assert call("dev", "reset", "--yes")[:2] == (0, "there is nothing in .ductor\n")
    code, _, err = call("dev", "reset", "--cache")
    assert (code, "give --yes" in err) == (2, True)
    assert call("dev", "reset", "--yes", "--cache")[0] == 0
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_dir())
    assert left == ["cache", "postgres-1f", "shared", "theirs"]


# -- deployments --------------------------------------------------------------------------------------


def test_versions_are_told_apart_by_what_the_app_has(shop: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    call("--help")
    app = load_app(str(shop / "shop.py"))
    digest = app.workflows["fulfil", "1"].definition.digest
    opened = [
        OpenVersion("fulfil", "0", "suspended", 2, 1_000),
        OpenVersion("fulfil", "1", "running", 5, 3_000),
        OpenVersion("fulfil", "1", "paused", 1, 2_000),
    ]
    declared = [Declared("fulfil", "0", "old", 500), Declared("fulfil", "1", digest, 700)]
    gone, here = described(app, opened, declared)
    assert (gone["version"], gone["code"], gone["digest"], gone["open"]) == ("0", "missing", None, {"suspended": 2})
    assert [each["digest"] for each in gone["served"]] == ["old"]
    assert (here["version"], here["code"], here["open"]) == ("1", "deployed", {"running": 5, "paused": 1})
    assert msgspec.json.encode(here["oldest_at"]) == b'"1970-01-01T00:00:02Z"'
    (new,) = described(app, [], [])
    assert (new["code"], new["open"], new["oldest_at"]) == ("new", {}, None)


# -- a pooler, as its two clients see it --------------------------------------------------------------


class Session:
    """A connection that is answered by the server processes of a pool, or by one of its own."""

    def __init__(self, told: int, backends: list[int]) -> None:
        self.info = SimpleNamespace(backend_pid=told)
        self._backends = backends

    def execute(self, _: bytes) -> Any:
        backend = self._backends.pop(0) if len(self._backends) > 1 else self._backends[0]
        return SimpleNamespace(fetchone=lambda: (backend,))

    def transaction(self) -> Any:
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    ("first", "second", "pooling"),
    [
        (Session(11, [11]), Session(12, [12]), "none"),
        (Session(901, [11]), Session(902, [12]), "session"),
        (Session(901, [11, 12]), Session(902, [11]), "transaction"),
        (Session(901, [11, 13]), Session(902, [12]), "transaction"),
    ],
)
def test_a_pooler_is_told_by_the_processes_that_answer(first: Any, second: Any, pooling: str) -> None:
    assert pooling_of(first, second) == pooling
