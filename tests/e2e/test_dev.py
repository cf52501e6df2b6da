"""``ductor-stream dev`` and the commands beside it, as the README tells."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from e2e.commands import COMMAND, Folder, alive, clean_environment, descendants
from pages import blocks
from support import free_port, fresh_name, until

from ductor_stream.kafka.topics import AdminConfig, delete_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing import replay_history

if TYPE_CHECKING:
    from servers import KafkaServer


SHOP = """
from pathlib import Path
from ductor_stream import App, Run, TerminalError

app = App("shop")
approved = app.signal("approved", bool)

@app.step()
async def charge(order: str) -> str:
    return f"receipt for {order}"

@app.workflow()
async def fulfil(run: Run, order: str) -> str:
    receipt = await run.step(charge, order)
    if not await run.wait_signal(approved):
        return "refused"
    return receipt

@app.step()
def pay(order: str) -> str:
    if not Path("bank-is-open").exists():
        raise TerminalError("the bank is closed", type="BankClosed")
    return f"paid {order}"

@app.workflow()
async def settle(run: Run, order: str) -> str:
    return await run.step(pay, order)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, dict[str, str]]]:
    """A running ``dev`` of an app with a step and a signal."""
    folder = Folder(tmp_path_factory.mktemp("shop"))
    (folder.path / "shop.py").write_text(SHOP, encoding="utf-8")
    with folder.running("shop:app") as ready:
        yield folder, ready


def test_the_line_says_where_everything_is(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, ready = shop
    assert ready["kafka_bootstrap"].startswith("127.0.0.1:")
    assert ready["database_url"].startswith("postgresql://")
    assert ready["data_dir"] == str(folder.path / ".ductor")


def test_a_run_from_its_start_to_its_end(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "fulfil", "order-42", "--input", '"order-42"')

    def waits() -> bool:
        seen = folder.json("runs", "show", "order-42")
        assert "signal approved is missing" in (seen["waiting_for"] or ""), seen
        return True

    until(waits)
    seen = folder.json("runs", "show", "order-42")
    assert (seen["status"], seen["workflow"], seen["version"], seen["execution"]) == ("running", "fulfil", "1", 1)
    assert [(n["kind"], n["name"], n["status"]) for n in seen["nodes"]] == [
        ("step", "charge", "completed"),
        ("signal", "approved", "waiting"),
    ]
    assert seen["nodes"][0]["generation"] == seen["nodes"][0]["attempts"] == 1
    folder.ok("signal", "order-42", "approved", "--json-payload", "true")
    watched = folder.ok("runs", "watch", "order-42")
    assert watched.splitlines()[-1] == "order-42 completed"
    seen = folder.json("runs", "show", "order-42")
    assert (seen["status"], seen["result"], seen["waiting_for"]) == ("completed", "receipt for order-42", None)
    assert len(folder.json("runs", "history", "order-42")) == seen["record_version"] == 3
    assert "order-42" in folder.ok("runs", "list", "--status", "completed")


def test_what_cannot_be_done_has_its_exit_code(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "fulfil", "order-7", "--input", '"order-7"')
    until(lambda: folder.run("runs", "show", "order-7").returncode == 0)
    assert folder.run("start", "fulfil", "order-7", "--on-conflict", "reject", "--start-id", "s").returncode == 4
    folder.ok("terminate", "order-7", "--reason", "no longer wanted")
    assert folder.run("runs", "watch", "order-7").returncode == 1
    assert folder.run("cancel", "order-7").returncode == 4
    assert folder.run("runs", "show", "order-8").returncode == 3
    assert folder.run("cancel", "order-8").returncode == 3
    assert folder.run("start", "fulfil", "order-9", "--input", "not json").returncode == 2
    assert folder.run("topics", "check", "shop:app").returncode == 0
    unknown = folder.run("start", "fulfill", "order-9", "--input", '"x"')
    assert (unknown.returncode, "did you mean 'fulfil'?" in unknown.stderr) == (3, True)


@pytest.mark.parametrize(("command", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_a_run_is_ended(shop: tuple[Folder, dict[str, str]], command: str, status: str) -> None:
    folder, _ = shop
    run_id = f"order-{command}"
    folder.ok("start", "fulfil", run_id, "--input", '"x"')
    until(lambda: folder.run("runs", "show", run_id).returncode == 0)
    told = folder.run(command, run_id, "--reason", "no longer wanted")
    assert told.returncode == 0, told.stderr
    assert folder.run("runs", "watch", run_id).returncode == 1
    assert folder.json("runs", "show", run_id)["status"] == status


def test_kafka_away_is_exit_status_5(tmp_path: Path) -> None:
    """Of every command that needs it, with what to look at; all at once, since each waits for ten seconds."""
    folder, nowhere = Folder(tmp_path), f"127.0.0.1:{free_port()}"
    commands = {
        "start": ["start", "fulfil", "order-1"],
        "signal": ["signal", "order-1", "approved"],
        "cancel": ["cancel", "order-1"],
        "list": ["dead-letters", "list"],
        "replay": ["dead-letters", "replay", "0:1"],
    }
    for name, arguments in commands.items():
        commands[name] = [*arguments, "--namespace", "shop", "--kafka", nowhere]
    processes = {name: folder.start(*arguments, name=name) for name, arguments in commands.items()}
    assert {name: process.wait(60) for name, process in processes.items()} == dict.fromkeys(commands, 5)
    for name in commands:
        assert "Kafka does not answer" in folder.errors(name) and "DUCTOR_KAFKA_BOOTSTRAP" in folder.errors(name)
        assert "Traceback" not in folder.errors(name)


def test_pause_and_resume(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "fulfil", "order-p", "--input", '"order-p"')
    until(lambda: folder.run("runs", "show", "order-p").returncode == 0)
    folder.ok("pause", "order-p")
    until(lambda: folder.json("runs", "show", "order-p")["status"] == "paused")
    assert "until it is resumed" in folder.json("runs", "show", "order-p")["waiting_for"]
    assert folder.run("pause", "order-p").returncode == 4
    folder.ok("resume", "order-p")
    folder.ok("signal", "order-p", "approved", "--json-payload", "false")
    assert folder.run("runs", "watch", "order-p").returncode == 0
    assert folder.json("runs", "show", "order-p")["result"] == "refused"


def test_retry_and_reset(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "settle", "bill-1", "--input", '"bill-1"')
    assert folder.run("runs", "watch", "bill-1").returncode == 1
    failed = folder.json("runs", "show", "bill-1")
    assert (failed["status"], failed["error"]["type"]) == ("failed", "BankClosed")
    line = next(n for n, text in enumerate(SHOP.splitlines(), start=1) if "BankClosed" in text)
    assert f"BankClosed: the bank is closed (at shop.py:{line} in pay)" in folder.ok("runs", "show", "bill-1")
    (folder.path / "bank-is-open").touch()
    folder.ok("retry", "bill-1")

    def result(execution: int) -> str:
        seen = folder.json("runs", "show", "bill-1")
        assert (seen["execution"], seen["status"]) == (execution, "completed"), seen
        return str(seen["result"])

    assert until(lambda: result(2)) == "paid bill-1"
    assert folder.run("retry", "bill-1").returncode == 4
    refused = folder.run("reset", "bill-1", "--to-node", "nowhere")
    assert (refused.returncode, "it has 1 (pay)" in refused.stderr) == (4, True)
    folder.ok("reset", "bill-1", "--to-node", failed["nodes"][0]["node_id"])
    assert until(lambda: result(3)) == "paid bill-1"
    assert folder.run("reset", "bill-1").returncode == 2
    refused = folder.run("reset", "bill-1", "--to-transition", "99")
    assert (refused.returncode, "has no transition 99 to go back to" in refused.stderr) == (4, True)
    folder.ok("reset", "bill-1", "--to-transition", "1")
    assert until(lambda: result(4)) == "paid bill-1"


def test_a_history_is_exported_for_replay(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    folder.ok("start", "fulfil", "order-e", "--input", '"order-e"')
    folder.ok("signal", "order-e", "approved", "--json-payload", "true")
    folder.ok("runs", "watch", "order-e")
    namespace: dict[str, Any] = {}
    exec(SHOP, namespace)  # noqa: S102 (the app of this module)
    assert replay_history(namespace["app"], folder.ok("runs", "export", "order-e").encode()) is None


def test_dead_letters_are_listed_and_sent_again(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, ready = shop
    producer = Producer({"bootstrap.servers": ready["kafka_bootstrap"]})
    producer.produce("ductor.shop.run-events", b"rubbish \xff", b"order-r")
    producer.flush(30)
    letters = until(lambda: folder.json("dead-letters", "list"))
    assert (letters[0]["reason"], letters[0]["key"]) == ("undecodable", "order-r")
    assert letters[0]["value"].startswith("base64:")
    assert folder.json("dead-letters", "replay", letters[0]["id"]) == {
        "sent": [letters[0]["id"]],
        "skipped": [],
        "failed": [],
    }
    again = until(lambda: folder.json("dead-letters", "list")[1:])
    assert again[0]["value"] == letters[0]["value"]
    assert folder.run("dead-letters", "replay", "0:999").returncode == 3


def test_a_second_dev_in_the_same_folder_is_refused(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    second = folder.run("dev", "shop:app")
    assert second.returncode == 1
    assert "is in use by process" in second.stderr
    assert "`dev stop` ends it" in second.stderr


def test_the_readmes_example_survives_kill_9(tmp_path: Path) -> None:
    """The README's app and commands; everything is killed in the middle of the durable sleep."""
    folder = Folder(tmp_path)
    [program] = blocks("README.md", "python")
    assert program.count(".sleep(5)") == 1
    # Longer, so that it still sleeps when a slow machine has looked.
    (tmp_path / "shop.py").write_text(program.replace(".sleep(5)", ".sleep(20)"))
    assert any("ductor-stream dev shop:app" in block for block in blocks("README.md"))
    process, _ = folder.dev("shop:app")
    below = descendants(process.pid)
    assert below
    folder.ok("start", "fulfil", "order-42", "--input", '"order-42"')

    def sleeps() -> bool:
        told = folder.run("runs", "show", "order-42").stdout
        assert "timer until" in told, told
        return True

    until(sleeps, within_ms=20_000)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    until(lambda: not alive(below), within_ms=20_000, what="the end of the servers")
    assert folder.run("runs", "list").returncode == 2
    with folder.running("shop:app"):
        assert folder.run("runs", "watch", "order-42").returncode == 0
        assert folder.json("runs", "show", "order-42")["result"] == "receipt for order-42"


def test_servers_that_die_are_started_again(tmp_path: Path) -> None:
    """Kafka and then Postgres are killed under a `dev`: it says so, in few lines, and its runs go on."""
    folder = Folder(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with folder.running("shop:app") as ready:
        for number, (server, pid_file) in enumerate(
            (("Kafka", "kafka/pid"), ("Postgres", "postgres/data/postmaster.pid")), start=1
        ):
            pid = (tmp_path / ".ductor" / pid_file).read_text(encoding="ascii").split()[0]
            os.kill(int(pid), signal.SIGKILL)
            until(lambda name=server: f"dev: {name} runs again" in folder.errors("dev"), within_ms=30_000)
            assert folder.errors("dev").count(f"dev: {server} has ended (killed by signal 9)") == 1
            folder.ok("start", "fulfil", f"order-{number}", "--input", '"x"')
            folder.ok("signal", f"order-{number}", "approved", "--json-payload", "true")
            assert folder.run("runs", "watch", f"order-{number}").returncode == 0
        assert folder.json("dev", "status")["kafka_bootstrap"] == ready["kafka_bootstrap"]
        assert folder.errors("dev").count("Connection refused") < 10


def test_processes_beside_a_dev_find_its_servers(shop: tuple[Folder, dict[str, str]]) -> None:
    folder, _ = shop
    for command in ("worker", "coordinator", "serve"):
        process = folder.start(command, "shop:app")
        try:
            until(lambda name=command: " running " in folder.errors(name), within_ms=30_000, what=command)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert folder.run("topics", "check", "shop:app").returncode == 0
    assert folder.run("deployments", "shop:app").returncode == 0


@pytest.mark.parametrize("named", [("kafka", "database"), ("database",), ("kafka",)], ids=" and ".join)
def test_servers_that_there_are_already(
    named: tuple[str, ...], kafka: KafkaServer, database_url: str, tmp_path: Path
) -> None:
    """`--kafka` and `--database` take what exists instead: tables and topics are made there, and nothing else is started."""
    folder, namespace = Folder(tmp_path), fresh_name("dev")
    (tmp_path / "shop.py").write_text(SHOP.replace('App("shop")', f'App("{namespace}")'), encoding="utf-8")
    topics = Topics(namespace)
    there = {"kafka": kafka.bootstrap, "database": database_url}
    try:
        with folder.running("shop:app", *(word for name in named for word in (f"--{name}", there[name]))) as ready:
            assert (ready["kafka_bootstrap"] == kafka.bootstrap) is ("kafka" in named)
            assert (ready["database_url"] == database_url) is ("database" in named)
            embedded = {name for name in ("kafka", "postgres") if (tmp_path / ".ductor" / name).exists()}
            assert embedded == {"kafka", "postgres"} - {name.replace("database", "postgres") for name in named}
            folder.ok("start", "fulfil", "order-1", "--input", '"order-1"')
            folder.ok("signal", "order-1", "approved", "--json-payload", "true")
            assert folder.run("runs", "watch", "order-1").returncode == 0
            with psycopg.connect(ready["database_url"]) as connection:
                query = "select n.name, r.run_id, r.status from eec_workflow_run r join eec_namespace n using (ns)"
                assert connection.execute(query).fetchall() == [(namespace, "order-1", "completed")]
            assert topics.run_events in topic_names(ready["kafka_bootstrap"])
        assert (topics.run_events in topic_names(kafka.bootstrap)) is ("kafka" in named)
    finally:
        if "kafka" in named:
            admin = AdminConfig(bootstrap=kafka.bootstrap, topics=topics)
            delete_topics(admin, [each.name for each in plan(topics, ["default"])])


def topic_names(bootstrap: str) -> set[str]:
    """Of all topics that a Kafka has."""
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


BUG = """
from ductor_stream import App, Run

app = App("shop")

@app.step()
async def charge(order: str) -> str:
    return f"receipt for {order}"

@app.workflow()
async def fulfil(run: Run, order: str) -> str:
    receipt = await run.step(charge, order)
    return receipt + 1
"""


def test_reload_mends_a_suspended_run(tmp_path: Path) -> None:
    """A bug suspends the run, with the user's line; the corrected file lets it go on."""
    folder = Folder(tmp_path)
    shop = tmp_path / "shop.py"
    shop.write_text(BUG, encoding="utf-8")
    with folder.running("shop:app", "--reload"):
        folder.ok("start", "fulfil", "order-1", "--input", '"order-1"')

        def suspended() -> bool:
            told = folder.run("runs", "show", "order-1").stdout
            assert "suspended" in told, told
            return True

        until(suspended, within_ms=20_000)
        assert "TypeError" in folder.json("runs", "show", "order-1")["waiting_for"]
        servers = _server_pids(tmp_path)
        shop.write_text(BUG.replace("receipt + 1", "receipt +"), encoding="utf-8")
        until(lambda: "the app has ended; waiting for a change" in folder.errors("dev"), within_ms=30_000)
        in_effect = "shop.py changed: coordinator and worker run the new code"
        assert in_effect not in folder.errors("dev")
        shop.write_text(BUG.replace("receipt + 1", "receipt"), encoding="utf-8")
        until(lambda: in_effect in folder.errors("dev").splitlines(), within_ms=30_000)
        assert folder.run("runs", "watch", "order-1").returncode == 0
        assert folder.json("runs", "show", "order-1")["result"] == "receipt for order-1"
        assert _server_pids(tmp_path) == servers  # what is started anew is the app, not Kafka and Postgres


def _server_pids(folder: Path) -> list[str]:
    files = ("kafka/pid", "postgres/data/postmaster.pid")
    return [(folder / ".ductor" / file).read_text(encoding="ascii").split()[0] for file in files]


MOVED = SHOP.replace(
    "    receipt = await run.step(charge, order)\n    if not", "    receipt = await run.step(pay, order)\n    if not"
)


def test_reload_lists_runs_that_no_longer_fit(tmp_path: Path) -> None:
    """Beforehand: they wait for a signal, and would be suspended when it comes."""
    folder = Folder(tmp_path)
    shop = tmp_path / "shop.py"
    shop.write_text(SHOP, encoding="utf-8")
    with folder.running("shop:app", "--reload"):
        folder.ok("start", "fulfil", "order-1", "--input", '"order-1"')

        def waits() -> bool:
            return "approved" in folder.run("runs", "show", "order-1").stdout

        until(waits, within_ms=20_000)
        assert folder.json("replay", "shop:app", "--open", "9")["ok"] is True
        shop.write_text(MOVED, encoding="utf-8")
        told = "run order-1 no longer fits: "
        until(lambda: told in folder.errors("dev"), within_ms=30_000, what=told)
        [line] = [each for each in folder.errors("dev").splitlines() if each.startswith(told)]
        assert "history has node 1: step charge" in line and "this code has node 1: step pay" in line
        found = folder.run("replay", "shop:app", "--open", "9")
        assert (found.returncode, "differs  order-1" in found.stdout) == (1, True)
        shop.write_text(MOVED.replace("async def fulfil", "async def supply"), encoding="utf-8")
        until(lambda: f"{told}the app has no workflow fulfil of version 1" in folder.errors("dev"), within_ms=30_000)


def test_a_full_disk_is_said_in_a_line(tmp_path: Path) -> None:
    """A file system of 20 MB, in a mount namespace of its own."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / ".ductor").mkdir()
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    tried = subprocess.run([*own, "mount", "-t", "tmpfs", "tmpfs", ".ductor"], cwd=tmp_path, check=False)
    if tried.returncode != 0:
        pytest.fail("a file system of its own takes root (CAP_SYS_ADMIN) or user namespaces", pytrace=False)
    script = 'mount -t tmpfs -o size=20m tmpfs .ductor && exec "$@"'
    done = subprocess.run(
        [*own, "sh", "-c", script, "sh", *COMMAND, "dev", "shop:app"], cwd=tmp_path, env=clean_environment(),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert f"the disk of {tmp_path / '.ductor'} is full" in line and "--data-dir" in line
    assert "Traceback" not in done.stderr
