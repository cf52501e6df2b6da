"""What `acls` and `grants` print: exactly what the code does, told from its SQL, and commands that can be pasted."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from ductor_stream.cli.security import acls, grants
from ductor_stream.kafka.acls import PROCESSES, acls_for
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.grants import ROLES, statements
from ductor_stream.store.queries import schema_sql

TOPICS = Topics("shop")
FILES = {
    "commit.sql": "coordinator",
    "partition.sql": "coordinator",
    "run.sql": "coordinator",
    "fold.sql": "coordinator",
    "inspect.sql": "coordinator",
    "read.sql": "reader",
    "outcome.sql": "reader",
    "purge.sql": "purger",
}
"""Who runs the queries of a file. A file that is not here is nobody's yet: say whose, and what `grants` must give for it."""

ELSEWHERE = {
    "coordinator": {("eec_schema", "select")},  # store.migrate.check
    "reader": {("eec_payload", "select"), ("eec_namespace", "select")},  # cli.letters, find_namespace
    "purger": {("eec_namespace", "select")},  # find_namespace
}
"""What is needed beside the queries."""


def needed(text: str) -> set[tuple[str, str]]:
    """(table, right) for every table that the statements of a file touch."""
    text = re.sub(r"--.*", "", text)
    found = set()
    for right, table in re.findall(r"\b(insert into|update|delete from) (eec_\w+)", text):
        found.add((table, right.split()[0]))
        if right != "insert into":
            found.add((table, "select"))  # for its condition
    clauses = r"insert into (eec_\w+)(?:(?!insert into|;).)*?on conflict (\([^)]*\)[^;]*?)?do (update|nothing)"
    for table, target, action in re.findall(clauses, text, re.DOTALL):
        found |= {(table, "select")} if target else set()
        found |= {(table, "update")} if action == "update" else set()
    found |= {(table, "select") for table in re.findall(r"(?<!delete )\b(?:from|join) (eec_\w+)", text)}
    for statement in text.split(";"):
        if re.search(r"\bfor (?:no key )?update\b", statement):
            found |= {
                (table, "update")
                for table in re.findall(r"\bfrom (eec_\w+)", statement.split("where p.partition in")[0])[:1]
            }
    return found


def by_role() -> dict[str, set[tuple[str, str]]]:
    found = defaultdict(set, {role: set(rights) for role, rights in ELSEWHERE.items()})
    for file in files("ductor_stream.store").joinpath("sql/queries").iterdir():
        if file.name.endswith(".sql"):
            assert file.name in FILES, f"who runs the queries of {file.name}? Say it in FILES"
            found[FILES[file.name]] |= needed(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(("role", "granted"), list(ROLES.items()))
def test_a_role_is_granted_what_its_queries_need_and_no_more(role: str, granted: dict[str, tuple[str, ...]]) -> None:
    pairs = {(table, right.partition(" (")[0]) for table, rights in granted.items() for right in rights}
    assert pairs == by_role()[role]


def test_only_tables_that_exist_are_granted() -> None:
    made = set(re.findall(r"create (?:table|view) (eec_\w+)", schema_sql()))
    assert {table for rights in ROLES.values() for table in rights} <= made


def test_names_of_roles_and_schemas_are_quoted() -> None:
    found = statements({"reader": 'a"b'}, schema="S")
    assert 'grant select on "S"."eec_counter" to "a""b"' in found
    assert found.index('revoke all on "S"."eec_counter" from "a""b"') < found.index(
        'grant select on "S"."eec_counter" to "a""b"'
    )


def test_a_role_that_is_two_of_them_may_what_both_may() -> None:
    """It is granted once: what is revoked for the second kind was granted for the first."""
    found = statements({"coordinator": "app", "purger": "app", "reader": "eyes"})
    rights = next(each for each in found if "eec_workflow_run" in each and each.endswith('to "app"'))
    assert {"select", "insert", "update", "delete"} <= set(re.findall(r"\w+", rights))
    assert len([each for each in found if each.startswith("revoke") and '"eec_workflow_run" from "app"' in each]) == 1
    separate = statements({"coordinator": "app"}) + statements({"reader": "eyes"})
    assert statements({"coordinator": "app", "reader": "eyes"}) == separate


def test_grants_print_sql_for_the_roles_that_are_named() -> None:
    said = CliRunner().invoke(grants, ["--reader", "eyes"]).output
    assert said.rstrip().endswith("commit;") and '"eyes"' in said and "ductor_coordinator" not in said
    assert "--   create role eyes login;" in said


APP = """
from ductor_stream import App, Run
app = App("shop")
@app.step(queue="payments")
async def charge() -> None: ...
ship = app.external_step("ship", queue="shipping", input=str, output=str)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app's name for the commands, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "rights_shop.py").write_text(APP, "utf-8")
    return "rights_shop:app"


INBOUND = "attempt-results run-events wakeups"
TASKS = "tasks.payments tasks.shipping"
ALL_TOPICS = f"attempt-control dead-letters {INBOUND} run-lifecycle {TASKS}"
COORDINATOR = {
    "read topic": INBOUND,
    "write topic": f"attempt-control dead-letters run-lifecycle {TASKS} wakeups",
    "read group": "coordinator",
    "describe group": "worker.payments worker.shipping",
}
WORKER = {
    "read topic": f"attempt-control {TASKS}",
    "write topic": "attempt-results dead-letters",
    "read group": "worker.payments worker.shipping",
    "describe group": "attempt-control.reader",
}
ALLOWED: dict[str, dict[str, str]] = {
    "topics": {"create topic": ALL_TOPICS, "describe topic": ALL_TOPICS},
    "coordinator": COORDINATOR,
    "worker": WORKER,
    "serve": {right: f"{COORDINATOR[right]} {WORKER[right]}" for right in COORDINATOR},
    "client": {"read topic": "run-lifecycle", "write topic": "run-events", "describe group": "ductor-client"},
    "dead-letters": {
        "read topic": "dead-letters",
        "write topic": f"{INBOUND} {TASKS}",
        "describe group": "ductor-client ductor-letters-*",
    },
    "purge": {
        "describe topic": f"dead-letters {INBOUND} {TASKS}",
        "describe_configs topic": f"dead-letters {INBOUND} {TASKS}",
    },
}
"""All that each kind of process may, of the app above; a right more or less is a decision (docs/security.md)."""


@pytest.mark.parametrize("process", PROCESSES)
def test_each_process_is_allowed_exactly_this(app: str, process: str) -> None:
    [printed] = json.loads(CliRunner().invoke(acls, [app, "--process", process, "--json"]).output)
    found = defaultdict(set)
    for acl in printed["acls"]:
        name = acl["name"].removeprefix("ductor.shop.") + ("*" if acl["pattern"] == "prefixed" else "")
        found[f"{acl['operation']} {acl['resource']}"].add(name)
    assert found == {right: set(names.split()) for right, names in ALLOWED[process].items()}


def test_acls_are_commands_that_can_be_pasted(app: str) -> None:
    done = CliRunner().invoke(acls, [app, "--principal", "User:{namespace} {process}"])
    assert done.exit_code == 0, done.output
    commands = [shlex.split(line) for line in done.output.splitlines() if line.startswith("kafka-acls.sh")]
    assert len(commands) > 10
    for command in commands:
        assert command[command.index("--bootstrap-server") + 1] == "$BROKER"
        assert command[command.index("--allow-principal") + 1].startswith("User:shop ")
        assert command[command.index("--operation") + 1] in ("Read", "Write", "Describe", "Create", "DescribeConfigs")
    text = json.loads(CliRunner().invoke(acls, [app, "--json"]).output)
    printed = sum(command.count("--topic") + command.count("--group") for command in commands)
    assert printed == sum(len(each["acls"]) for each in text)


def test_a_worker_of_one_queue_is_allowed_that_queue_alone(app: str) -> None:
    [worker] = json.loads(CliRunner().invoke(acls, [app, "--process", "worker", "--queue", "other", "--json"]).output)
    names = {acl["name"] for acl in worker["acls"]}
    assert "ductor.shop.tasks.other" in names and "ductor.shop.tasks.payments" not in names


def test_nobody_is_allowed_a_pattern_or_the_cluster_but_for_made_up_groups() -> None:
    for process in PROCESSES:
        for acl in acls_for(process, TOPICS, ["payments"]):
            assert acl.name.startswith("ductor.shop.") or acl.resource == "group"
            assert acl.pattern == "literal" or acl.name == "ductor-letters-"


def test_a_worker_cannot_start_runs_and_a_client_cannot_answer_for_steps() -> None:
    written = {
        process: {acl.name for acl in acls_for(process, TOPICS, ["payments"]) if acl.operation == "write"}
        for process in PROCESSES
    }
    assert TOPICS.run_events not in written["worker"] | written["coordinator"]
    assert written["client"] == {TOPICS.run_events}
    assert TOPICS.attempt_results not in written["coordinator"]


def test_letters_are_sent_again_to_every_topic_that_they_come_from() -> None:
    """A worker's letters come from task topics."""
    written = {acl.name for acl in acls_for("dead-letters", TOPICS, ["payments"]) if acl.operation == "write"}
    assert written == {*TOPICS.inbound_names, TOPICS.tasks("payments")}
