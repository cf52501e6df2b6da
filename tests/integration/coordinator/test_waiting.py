"""``runs show`` on real Kafka and Postgres: why a run waits, where only the servers around it can tell (R9)."""

from __future__ import annotations

import json
import threading
from typing import Any

from click.testing import CliRunner
from rig import Rig
from rig_worker import doubled, silent
from support import until

from ductor_stream.cli.runs import runs


def waits(rig: Rig, run_id: str, *told: str) -> None:
    """Until its sentence has all of these."""
    options = ["--database", rig.database, "--kafka", rig.bootstrap, "--namespace", rig.namespace, "--json"]

    def look() -> bool:
        said = CliRunner().invoke(runs, ["show", run_id, *options], catch_exceptions=False)
        sentence = str(json.loads(said.output)["waiting_for"])
        assert all(part in sentence for part in told), sentence
        return True

    until(look, within_ms=30_000, what=f"the reason why {run_id} waits")


def test_what_a_queue_has_before_a_task(rig: Rig) -> None:
    """Nobody is there; somebody is, and is busy; somebody took it, and has said nothing yet."""
    busy = threading.Event()

    def slow(task: dict[str, Any]) -> Any:
        assert busy.wait(60)
        return doubled(task)

    rig.coordinator()
    ids = [f"c{number}" for number in range(4)]
    rig.start(*ids, workflow="chain", input=1)
    rig.until_status("running", *ids)
    waits(rig, "c0", "no consumer on queue default (4 task(s) wait), start one")
    worker = rig.worker(slow)
    first = until(lambda: worker.tasks, what="the first task taken")[0]["run_id"]
    last = next(run_id for run_id in reversed(ids) if run_id != first)
    waits(rig, last, "task(s) wait on queue default for 1 consumer(s)")
    busy.set()
    rig.until_status("completed", *ids)
    worker.close()
    rig.worker(silent)
    rig.start("quiet", workflow="chain", input=1)
    rig.until_status("running", "quiet")
    waits(rig, "quiet", "taken by one of 1 consumer(s) on queue default, nothing heard of it yet")


def test_a_timer_a_signal_a_pause_a_version_and_no_coordinator(rig: Rig) -> None:
    running = rig.coordinator()
    rig.start("timer", workflow="nap", input=10**9)
    rig.start("word", workflow="words", input=1)
    rig.start("paused", workflow="words", input=1)
    rig.send(rig.topics.run_events, "paused", {"type": "run.pause", "command_id": "p"})
    rig.start("later", workflow="words", input=1, version="9")
    rig.until_status("running", "timer", "word")
    rig.until_status("paused", "paused")
    rig.until_status("suspended", "later")
    waits(rig, "timer", "timer until 20")
    waits(rig, "word", "signal word is missing")
    waits(rig, "paused", "paused; 0 event(s) held until it is resumed")
    waits(rig, "later", "suspended, version_missing: words version 9 is not deployed here")
    running.stop()
    waits(rig, "word", "no coordinator is up, start one", "until then: signal word is missing")
