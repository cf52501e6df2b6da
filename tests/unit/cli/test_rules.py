"""Rules on the command line: ``decide``, what ``check`` says, and why a recorded decision was taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from ductor_stream import App, Row, Run
from ductor_stream.cli.history import history_rows
from ductor_stream.cli.verdicts import explained, explained_lines
from ductor_stream.testing import TestEnv

Call = Callable[..., tuple[int, str, str]]

SHOP = """
from dataclasses import dataclass
from ductor_stream import App, HttpRequest, KafkaRecord, Row, Run, Secret

app = App("shop")

@dataclass
class Order:
    total: float

rate = app.decision_table("rate", version="3", hit="first", input=Order, output=float, rows=[
    Row("large", {"amount": "total > 100.0"}, "0.1"),
    Row("tiny", {"amount": "total < 1.0"}, "1.0 / double(int(total))"),
])
large = app.expression("large", "total > 100.0", input=Order, output=bool)
tell = app.http_step(
    "tell", HttpRequest(method="POST", url="https://api.example.com/x", headers={"X-Token": Secret("SHOP_TOKEN")}),
    input=Order, queue="web",
)
publish = app.kafka_step("publish", KafkaRecord(topic="orders"), input=Order)

@app.workflow
async def sell(run: Run, order: Order) -> float:
    await run.step(tell, order)
    await run.step(publish, order)
    return await run.step(rate, order)
"""


def test_decide_says_what_a_rule_says(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    code, out, _ = call("decide", "shop:app", "rate", "--input", '{"total": 101}', "--json")
    found = json.loads(out)
    assert (code, found["value"], found["hits"], found["version"]) == (
        0, 0.1, [{"row": "large", "when": {"amount": "total > 100.0"}}], "3",
    )  # fmt: skip
    code, out, _ = call("decide", "shop:app", "large", "--input", '{"total": 1}')
    assert code == 0
    assert out.startswith("large version 1: total > 100.0\n")
    assert "False" in out


def test_decide_without_a_decision_ends_with_1(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    code, _, err = call("decide", "shop:app", "rate", "--input", '{"total": 50}')
    assert (code, err) == (1, "NoRowHit: decision table 'rate' version 3: no row hit, and there is no default row\n")
    code, out, _ = call("decide", "shop:app", "rate", "--input", '{"total": 50}', "--json")
    assert (code, json.loads(out)["error"]["type"]) == (1, "NoRowHit")


def test_decide_refuses_what_is_no_rule_and_what_is_no_fact(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    code, _, err = call("decide", "shop:app", "rates", "--input", "{}")
    assert (code, "did you mean 'rate'?" in err) == (3, True)
    code, _, err = call("decide", "shop:app", "rate", "--input", '{"total": "much"}')
    assert (code, "total" in err) == (2, True)


def test_check_lists_rules_connectors_and_the_secrets_that_workers_need(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    code, out, _ = call("check", "shop:app", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(each["name"], each["policy"], each["rows"]) for each in found["rules"]] == [
        ("large", "expression", 0), ("rate", "first", 2),
    ]  # fmt: skip
    assert [(each["name"], each["queue"], each["target"], each["secrets"]) for each in found["connectors"]] == [
        ("publish", "default", "topic orders", []),
        ("tell", "web", "POST https://api.example.com/x", ["SHOP_TOKEN"]),
    ]
    code, out, _ = call("check", "shop:app")
    assert "needs the secrets SHOP_TOKEN" in out


def test_check_finds_rows_alike_and_rules_that_are_called_directly(call: Call, tmp_path: Path) -> None:
    text = SHOP.replace('"total < 1.0"', '"total > 100.0"').replace("await run.step(rate, order)", "rate(order)")
    (tmp_path / "shop.py").write_text(text)
    code, out, _ = call("check", "shop:app", "--json")
    assert code == 1
    assert sorted(each["code"] for each in json.loads(out)["findings"]) == ["alike-rows", "step-call"]


def test_acls_of_a_worker_have_the_topics_that_it_publishes_to(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    for queue, expected in (("default", {"write"}), ("web", set[str]())):
        _, out, _ = call("acls", "shop:app", "--process", "worker", "--queue", queue, "--json")
        [worker] = json.loads(out)
        assert {acl["operation"] for acl in worker["acls"] if acl["name"] == "orders"} == expected
    _, out, _ = call("acls", "shop:app", "--process", "coordinator", "--json")
    assert "orders" not in [acl["name"] for acl in json.loads(out)[0]["acls"]]


def test_history_says_why_a_rule_decided_so() -> None:
    app = App("t")
    rate = app.decision_table(
        "rate", rows=[Row("large", {"amount": "facts > 100.0"}, "0.1")], input=float, output=float, version="3"
    )

    @app.workflow
    async def sell(run: Run, total: float) -> float:
        return await run.step(rate, total)

    async def check() -> None:
        async with TestEnv(app) as env:
            handle = await env.start(sell, 101.0)
            assert await handle.result() == 0.1
            lines = [row["event"] for row in history_rows("r", [(1, handle.records)])]
            why = "rate version 3: row large hit (amount: facts > 100.0)"
            assert any(line.endswith(f"completed: {why} → 0.1") for line in lines)
            [(node_id, found)] = explained(handle.records).items()
            assert (found["facts"], found["verdict"]["why"], found["verdict"]["version"]) == (101.0, why, "3")
            shown = [{"name": "rate", "node_id": node_id, **found}, {"name": "other", "node_id": "9"}]
            assert explained_lines(shown) == [f"rate ({node_id}): {why} → 0.1", "    facts: 101.0"]

    asyncio.run(check())


def test_a_replay_takes_the_recorded_verdict_whatever_the_rule_says_by_then() -> None:
    """History of version 1, code of version 2: the run goes on with what was decided."""

    def declared(version: str, then: str) -> tuple[App, object]:
        app = App("t")
        rate = app.decision_table("rate", rows=[Row("r", then=then)], input=float, output=float, version=version)
        go = app.signal("go", bool)

        async def sell(run: Run, total: float) -> float:
            found = await run.step(rate, total)
            await run.wait_signal(go)
            return found

        return app, app.workflow(version="1")(sell)

    async def check() -> None:
        old, workflow = declared("1", "0.1")
        new, _ = declared("2", "0.9")
        async with TestEnv(old) as env:
            handle = await env.start(workflow, 5.0)  # type: ignore[arg-type]
            env._definitions = {key: each.definition for key, each in new.workflows.items()}
            await handle.signal("go", True)
            assert await handle.result() == 0.1

    asyncio.run(check())
