"""``purge`` beside a coordinator that restarts the very runs that are purged: no rule breaks, and nothing is left over."""

from __future__ import annotations

import json
import secrets
from contextlib import closing

import msgspec
from click.testing import CliRunner
from rig import FAST, Rig
from store_rigs import Background
from support import until

from ductor_stream.cli.purge import purge
from ductor_stream.kafka.inspection import open_admin, topic_configs
from ductor_stream.kafka.retention import retentions
from ductor_stream.kafka.topics import INBOUND_RETENTION_MS, TASK_RETENTION_MS
from ductor_stream.store.purge import Purged, Purger

RUNS = 20
ROUNDS = 8
IDS = [f"r-{n}" for n in range(RUNS)]


def test_runs_that_are_restarted_while_they_are_purged(rig: Rig) -> None:
    running = rig.coordinator()
    rig.worker()
    ended: list[bool] = []

    def purging() -> Purged:
        total = Purged()
        with closing(Purger(rig.database, rig.namespace)) as purger:
            while not ended:
                total = sum(purger.batches(purger.now() + 1), total)
        return total

    rig.start(*IDS, input=1)
    rig.until_status("completed", *IDS)
    at_work = Background(purging)
    for number in range(ROUNDS):
        rig.start(*IDS, input=1, on_conflict="restart_if_closed", start_id=f"s-{number}")
        until(lambda: running.count("ductor_runs_started") >= RUNS, what="runs that start")

    def closed() -> bool:
        assert rig.rows("select run_id from eec_workflow_run where ns = {ns}") == []
        return True

    until(closed, within_ms=60_000, what="all runs done and purged")
    ended.append(True)
    assert at_work.result().runs > RUNS
    rig.check()
    for table in ("workflow_transition", "workflow_step_attempt", "workflow_signal", "open_attempt"):
        assert rig.rows(f"select run_id from eec_{table} where ns = {{ns}}") == [], table


def test_the_command_keeps_to_what_no_topic_can_deliver_again(rig: Rig) -> None:
    span = int(
        topic_configs(open_admin(rig.admin.bootstrap, rig.admin.options), [rig.topics.run_events], rig.admin)[
            rig.topics.run_events
        ]["segment.ms"]
    )
    assert set(retentions(rig.admin).values()) == {INBOUND_RETENTION_MS + span, TASK_RETENTION_MS}
    rig.coordinator(msgspec.structs.replace(FAST, buffered_ttl_ms=300, expiry_sweep_s=0.1))
    rig.worker()
    rig.start(*IDS, input=1, start_id="s")
    rig.until_status("completed", *IDS)
    servers = ["--namespace", rig.namespace, "--kafka", rig.bootstrap, "--database", rig.database, "--json"]

    def call(*options: str) -> dict[str, object]:
        done = CliRunner().invoke(purge, [*options, *servers], catch_exceptions=True)
        if done.exception is not None:
            return {"refused": str(done.exception)}
        found: dict[str, object] = json.loads(done.stdout)
        return found

    # Ids of messages whose run never comes, and a value that no letter has room for.
    for run_id in ("never", "neither"):
        rig.signal(run_id, "a word", signal_id="s")
    rig.send(rig.topics.run_events, "does not fit", secrets.token_bytes(1_040_000))
    until(lambda: len(rig.letters()) == 3, what="three letters")

    near = ("--closed-before", "0s")
    assert "tasks.default for 30 days" in str(call(*near)["refused"])
    nothing = call("--closed-before", "30d")
    assert (nothing["runs"], nothing["messages"], nothing["payloads"]) == (0, 0, 0)
    told = call(*near, "--ignore-retention", "--dry-run")
    assert told["runs"] == RUNS and told["by"] == [{"workflow": "chain", "status": "completed", "runs": RUNS}]
    assert (told["messages_of_no_run"], told["payloads"]) == (2, 1)
    # Until here a request that comes once more finds its run; from here on it begins it anew, as docs/operations.md says.
    known = rig.run("r-0")
    rig.start("r-0", input=1, start_id="s")
    until(lambda: any(told.type == "start.answered" for told in rig.told()), what="a start that is known")
    assert rig.run("r-0") == known
    gone = call(*near, "--ignore-retention")
    assert (gone["runs"], gone["attempts"], gone["payloads"]) == (RUNS, 2 * RUNS, 1)
    for table in ("workflow_run", "workflow_signal", "payload"):
        assert rig.rows(f"select from eec_{table} where ns = {{ns}}") == [], table
    assert call(*near, "--ignore-retention", "--dry-run")["runs"] == 0
    rig.start("r-0", input=1, start_id="s")
    rig.until_status("completed", "r-0")
