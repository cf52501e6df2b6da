"""The commands of whoever runs it, on a real ``dev``: doctor, deployments, why a run waits, replay, env, stop, reset."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from e2e.commands import Folder
from support import until

from ductor_stream.kafka.topics import AdminConfig, create_topics, delete_topics, plan
from ductor_stream.protocol.topics import Topics

SHOP = """
import threading
from pathlib import Path
from ductor_stream import App, RetryableError, Run

app = App("shop")
approved = app.signal("approved", bool)
ship = app.external_step("ship", queue="shipping", input=str, output=str)

@app.step()
async def charge(order: str) -> str:
    return f"receipt for {order}"

@app.step()
def count(order: str) -> str:
    while not Path("counted").exists():
        threading.Event().wait(0.05)
    return order

@app.step()
async def ask(order: str) -> str:
    raise RetryableError("the bank is closed", type="BankClosed", retry_after=3600)

@app.workflow()
async def shipping(run: Run, order: str) -> str:
    return await run.step(ship, order)

@app.workflow()
async def counting(run: Run, order: str) -> str:
    return await run.step(count, order)

@app.workflow()
async def asking(run: Run, order: str) -> str:
    return await run.step(ask, order)

@app.workflow()
async def approving(run: Run, order: str) -> bool:
    return await run.wait_signal(approved)

@app.workflow()
async def parent(run: Run, order: str) -> bool:
    return await run.child(approving, order, run_id=f"{order}-child")

@app.workflow()
async def fulfil(run: Run, order: str) -> str:
    return await run.step(charge, order)
"""

# What a release of tomorrow looks like: one workflow in another version, another one with other code.
TOMORROW = SHOP.replace(
    "@app.workflow()\nasync def approving", '@app.workflow(version="2")\nasync def approving'
).replace("return await run.step(charge, order)", "return await run.step(ask, order)")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, dict[str, str]]]:
    """A running ``dev``, and beside its app the one of tomorrow."""
    folder = Folder(tmp_path_factory.mktemp("operated"))
    (folder.path / "shop.py").write_text(SHOP, encoding="utf-8")
    (folder.path / "tomorrow.py").write_text(TOMORROW, encoding="utf-8")
    with folder.running("shop:app") as ready:
        yield folder, ready


def waits(folder: Folder, run_id: str, *told: str) -> str:
    """Wait until ``runs show`` gives a reason with all these words in it."""

    def look() -> str:
        seen = str(folder.json("runs", "show", run_id)["waiting_for"])
        assert all(word in seen for word in told), seen
        return seen

    until(lambda: folder.run("runs", "show", run_id).returncode == 0)
    return until(look, within_ms=30_000, what=f"the reason why {run_id} waits")


# -- why a run waits ----------------------------------------------------------------------------------


def test_no_consumer_is_on_the_queue(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "shipping", "s-1", "--input", '"s-1"')
    waits(folder, "s-1", "no consumer on queue shipping (1 task(s) wait)", "worker MODULE:APP --queue shipping")


def test_an_attempt_is_running_on_a_worker(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "counting", "c-1", "--input", '"c-1"')
    waits(folder, "c-1", "step count, attempt 1, running since ", " on ", "last heard of at")
    (folder.path / "counted").touch()
    folder.ok("runs", "watch", "c-1")
    assert folder.json("runs", "show", "c-1")["waiting_for"] is None


def test_a_step_backs_off(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "asking", "a-1", "--input", '"a-1"')
    waits(folder, "a-1", "step ask backs off until", "attempt 2 next after BankClosed: the bank is closed")


def test_a_child_run_has_not_ended(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "parent", "p-1", "--input", '"p-1"')
    waits(folder, "p-1", "child run p-1-child of approving has not ended", "; it is running")
    waits(folder, "p-1-child", "signal approved is missing")
    folder.ok("pause", "p-1-child")
    waits(folder, "p-1", "; it is paused")
    waits(folder, "p-1-child", "paused; 0 event(s) held until it is resumed")


# -- doctor -------------------------------------------------------------------------------------------


def levels(answered: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in json.loads(answered)["checks"]:
        found.setdefault(each["check"], []).append(each["level"])
    return found


def test_doctor_finds_nothing_wrong_with_dev(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    found = levels(folder.ok("doctor", "shop:app", "--write", "--json"))
    assert "wrong" not in {level for each in found.values() for level in each}
    assert found["clock"] == ["ok", "ok"]
    assert found["replication"] == ["note"]
    sound = {"kafka", "group-protocol", "session-timeout", "topics", "kafka-rights", "postgres", "schema", "namespace"}
    assert {name for name in sound if found[name] == ["ok"]} == sound
    told = folder.ok("doctor", "--namespace", "shop")
    assert "connected directly" in told


def known_ids(connection: psycopg.Connection[Any], topic: str) -> set[str | None]:
    """The ids of a topic that the owners of the partitions know it by."""
    return {each for (each,) in connection.execute("select topic_ids ->> %s from eec_partition", (topic,))}


def test_doctor_says_what_is_wrong_and_how_to_mend_it(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, ready = shop
    topics = Topics("shop")
    config = AdminConfig(bootstrap=ready["kafka_bootstrap"], topics=topics)
    with psycopg.connect(ready["database_url"], autocommit=True) as connection:
        connection.execute("create database broken")
        before = known_ids(connection, topics.tasks("shipping"))
    try:
        delete_topics(config, [topics.tasks("shipping")])
        elsewhere = ready["database_url"].rpartition("/")[0] + "/broken"

        def broken() -> str:
            done = folder.run(
                "doctor", "shop:app", "--json", "--kafka", ready["kafka_bootstrap"], "--database", elsewhere
            )
            found = levels(done.stdout)
            assert (done.returncode, found["schema"], found["topics"]) == (1, ["wrong"], ["warning"]), found
            return done.stdout

        told = until(broken)
        assert "run `ductor-stream migrate`" in told
        assert "topics create" in told
    finally:
        create_topics(config, plan(topics, ["default", "shipping"]))
        with psycopg.connect(ready["database_url"], autocommit=True) as connection:
            connection.execute("drop database broken")
            # Else a task of the next test would be sent, and sent again when its owner sees that the topic is another.
            until(lambda: before.isdisjoint(known_ids(connection, topics.tasks("shipping"))), what="the new topic seen")


def test_doctor_says_when_a_server_is_away(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, ready = shop
    nowhere = "postgresql://postgres@127.0.0.1:1/none"
    away = folder.run("doctor", "shop:app", "--kafka", ready["kafka_bootstrap"], "--database", nowhere)
    assert away.returncode == 5
    assert "Postgres cannot be reached" in away.stdout
    assert "check DUCTOR_DATABASE_URL" in away.stdout
    assert "Traceback" not in away.stderr
    assert folder.run("doctor", "shop:app", "--namespace", "no/name").returncode == 2


# -- versions and histories ---------------------------------------------------------------------------


def test_deployments_show_what_the_app_of_tomorrow_has_no_code_for(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "approving", "v-1", "--input", '"v-1"')
    waits(folder, "v-1", "signal approved is missing")

    def of(app: str) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["workflow"], each["version"]): each for each in folder.json("deployments", app)}

    today, tomorrow = of("shop:app"), of("tomorrow:app")
    assert today["approving", "1"]["code"] == "deployed"
    assert today["approving", "1"]["open"]["running"] >= 1
    assert today["fulfil", "1"]["open"] == {}
    assert tomorrow["approving", "1"]["code"] == "missing"
    assert tomorrow["approving", "1"]["open"] == today["approving", "1"]["open"]
    assert tomorrow["approving", "2"]["code"] == tomorrow["fulfil", "1"]["code"] == "new"
    assert "approving version 1" in folder.ok("deployments", "tomorrow:app")


def test_histories_are_replayed_with_the_code_of_tomorrow(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "fulfil", "f-1", "--input", '"f-1"')
    folder.ok("runs", "watch", "f-1")
    (folder.path / "f-1.json").write_text(folder.ok("runs", "export", "f-1"), encoding="utf-8")
    assert folder.json("replay", "shop:app", "f-1.json")["ok"] is True
    differs = folder.run("replay", "tomorrow:app", "f-1.json")
    assert differs.returncode == 1
    assert "history has node 1: step charge" in differs.stdout
    assert "this code has node 1: step ask" in differs.stdout


# -- beside dev ---------------------------------------------------------------------------------------


def test_env_is_what_a_shell_needs(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, ready = shop
    exports = folder.ok("env")
    told = subprocess.run(
        ["sh", "-c", f'{exports}\necho "$BROKER $DUCTOR_NAMESPACE $DUCTOR_DATABASE_URL"'],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    ).stdout
    assert told.split() == [ready["kafka_bootstrap"], "shop", ready["database_url"]]


def test_status_stop_and_reset(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    assert folder.run("dev", "status").returncode == 3
    process, ready = folder.dev("shop:app")
    try:
        seen = folder.json("dev", "status")
        assert (seen["state"], seen["pid"], seen["kafka_bootstrap"]) == (
            "running",
            process.pid,
            ready["kafka_bootstrap"],
        )
        assert folder.run("dev", "reset", "--yes").returncode == 4
        assert folder.json("dev", "stop") == {"stopped": True, "pid": process.pid}
    finally:
        process.terminate()
        process.wait(60)
    assert folder.run("dev", "status").returncode == 3
    assert (tmp_path / ".ductor/postgres").is_dir()
    folder.ok("dev", "reset", "--yes")
    assert not (tmp_path / ".ductor").exists()
