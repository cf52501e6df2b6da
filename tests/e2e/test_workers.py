"""Workers that do not know a step, that are blocked for ever, and that have never heard of a database."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fleet import fleet_of, module
from rig import Rig
from support import until

OLD = """
from told import effect
from ductor_stream import App, Run

app = App("shop")

@app.step
async def known(n: int) -> int:
    effect(step="known")
    return n
"""
NEW = (
    OLD
    + """
@app.step
async def fresh(n: int) -> int:
    effect(step="fresh")
    return n

@app.workflow
async def both(run: Run, n: int) -> list[int]:
    return [await run.step(known, n), await run.step(fresh, n)]
"""
)
IDS = [f"run-{n}" for n in range(10)]


def outcomes(rig: Rig, run_id: str) -> Counter[tuple[str, str, int]]:
    """How attempts ended: step, outcome, and which try of the policy it was."""
    ended = [row for row in rig.attempts(run_id) if row["phase"] == "finished"]
    return Counter((row["step"], row["outcome"], row["attempt"]) for row in ended)


def test_an_unknown_step_waits_for_a_worker_that_knows_it(rig: Rig) -> None:
    """A rolling deploy of a new step fails no run: it is rejected, visibly, and offered again."""
    with fleet_of(rig) as fleet:
        new = module(rig, "new", NEW)
        fleet.start("coordinator", folder=new)
        old = fleet.start("worker", folder=module(rig, "old", OLD))
        fleet.until_ready()
        rig.start(*IDS, workflow="both", input=1)
        until(lambda: all(outcomes(rig, run_id)["fresh", "rejected", 1] for run_id in IDS), what="all rejected")
        assert "no worker on default knows step fresh" in fleet.show(IDS[0])["waiting_for"]
        assert old.process.alive()

        fleet.start("worker", folder=new)
        fleet.until_shared("default")
        old.terminate()
        rig.until_status("completed", *IDS, within_ms=60_000)
        for run_id in IDS:
            found = outcomes(rig, run_id)
            assert found.pop(("fresh", "rejected", 1)) >= 1
            assert found == {("known", "completed", 1): 1, ("fresh", "completed", 1): 1}
        assert set(fleet.effect_counts().values()) == {1}
        old.until_ended()
        rig.check()


BLOCKING = """
import asyncio
import threading
from told import effect
from ductor_stream import App, Retry, Run, StepError

app = App("shop")
ONCE = Retry(max_attempts=1)
never = threading.Event()

@app.step(timeout=1, retry=ONCE)
def thread() -> None:
    never.wait()

@app.step(timeout=1, retry=ONCE)
async def awaits() -> None:
    await asyncio.Event().wait()

@app.step(timeout=1, retry=ONCE)
async def loop() -> None:
    never.wait()

@app.step
async def quick(n: int) -> int:
    effect(step="quick")
    return n

@app.step
def plain(n: int) -> int:
    effect(step="plain")
    return n

@app.workflow
async def blocked(run: Run) -> list[str]:
    found = []
    for step in (thread, awaits, loop):
        try:
            await run.step(step)
        except StepError as error:
            found.append(f"{error.error_code}: {error}")
    return found

@app.workflow
async def others(run: Run, n: int) -> list[int]:
    return [await run.step(quick, n), await run.step(plain, n)]
"""


def test_a_step_that_blocks_for_ever_is_a_failed_attempt_and_no_dead_worker(rig: Rig) -> None:
    """R11: a blocked thread, an endless await, a blocked event loop; what comes after them is run, by the same process."""
    with fleet_of(rig) as fleet:
        folder = module(rig, "blocking", BLOCKING)
        fleet.start("coordinator", folder=folder)
        worker = fleet.start("worker", folder=folder)
        fleet.until_ready()
        rig.start("blocked", workflow="blocked", input=None)
        rig.until_status("completed", "blocked", within_ms=40_000)
        told = rig.run("blocked")["result"]
        for sentence, step in zip(told, ("thread", "awaits", "loop"), strict=True):
            assert sentence.startswith(f"timeout_start_to_close: step {step}")
        rig.start(*IDS, workflow="others", input=1)
        rig.until_status("completed", *IDS, within_ms=40_000)
        assert {each["pid"] for each in fleet.effects()} == {worker.process.pid}
        assert worker.metric("ductor_worker_slots_lost") == 2
        worker.terminate()
        worker.until_ended()
        rig.check()


NO_DATABASE = "raise ImportError('a worker knows no database')\n"


def test_a_worker_needs_kafka_and_nothing_else(rig: Rig) -> None:
    """It has no address of a database, and no driver for one."""
    with fleet_of(rig) as fleet:
        new = module(rig, "new", NEW)
        fleet.start("coordinator", folder=new)
        bare = module(rig, "bare", NEW)
        (bare / "psycopg.py").write_text(NO_DATABASE)
        worker = fleet.start("worker", folder=bare)
        assert not [name for name in worker.spec.environment if "DATABASE" in name or name.startswith("PG")]
        fleet.until_ready()
        rig.start(*IDS, workflow="both", input=1)
        rig.until_status("completed", *IDS)
        assert connections(worker.process.pid) == {int(rig.bootstrap.rpartition(":")[2])}
        rig.check()


def connections(pid: int) -> set[int]:
    """Ports of others to which a process is connected (Linux)."""
    sockets = {path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found: set[int] = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, *rest = line.split()
        if state == "01" and f"socket:[{rest[5]}]" in sockets:
            found.add(int(remote.rpartition(":")[2], 16))
    return found
