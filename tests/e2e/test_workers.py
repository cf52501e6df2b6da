"""Workers that do not know a step, that are blocked for ever, and that have never heard of a database."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fleet import fleet_of, gate, module
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
        why = "no worker on default knows step fresh"
        until(lambda: why in fleet.show(IDS[0])["waiting_for"], within_ms=30_000, what=why)  # between two offers
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


ODD = """
from typing import Any
from told import effect
from ductor_stream import App, Run, StepError

app = App("shop")

@app.step
async def unserialisable() -> Any:
    effect(step="unserialisable")
    return object()

@app.step
def large(size: int) -> str:
    effect(step="large")
    return "x" * size

@app.step
async def good(n: int) -> int:
    effect(step="good")
    return n

@app.workflow
async def odd(run: Run, size: int) -> list[str]:
    found = []
    for call in (run.step(unserialisable), run.step(large, size)):
        try:
            await call
        except StepError as error:
            found.append(f"{error.error_code}: {error.message}")
    return [*found, str(await run.step(good, 7)), str(len(await run.step(large, 1000)))]
"""


def test_a_result_that_cannot_be_sent_is_a_failed_attempt_and_the_worker_works_on(rig: Rig) -> None:
    """R11: what is no value, and what no record holds; neither is tried again, and the same process does the rest."""
    with fleet_of(rig) as fleet:
        folder = module(rig, "odd", ODD)
        fleet.start("coordinator", folder=folder)
        worker = fleet.start("worker", folder=folder)
        fleet.until_ready()
        rig.start("odd", workflow="odd", input=2_000_000)
        rig.until_status("completed", "odd", within_ms=40_000)
        first, second, *rest = rig.run("odd")["result"]
        assert first.startswith("output_not_encodable: ")
        assert "unserialisable" in first
        assert second.startswith("output_too_large: ")
        assert "large" in second
        assert rest == ["7", "1000"]
        assert outcomes(rig, "odd") == {
            ("unserialisable", "failed", 1): 1,
            ("large", "failed", 1): 1,
            ("good", "completed", 1): 1,
            ("large", "completed", 1): 1,
        }
        assert [each["step"] for each in fleet.effects()] == ["unserialisable", "large", "good", "large"]
        assert {each["pid"] for each in fleet.effects()} == {worker.process.pid}
        assert worker.metric("ductor_worker_slots_lost") == 0
        assert rig.letters() == []
        worker.terminate()
        worker.until_ended()
        rig.check()


APART = """
import os
from told import effect, until_file
from ductor_stream import App, Run

app = App("shop")

@app.step(executor="process")
def apart(gate: str) -> int:
    effect(step="apart")
    until_file(gate)
    return os.getpid()

@app.workflow
async def parted(run: Run, gate: str) -> int:
    return await run.step(apart, gate)
"""


def test_a_step_in_a_process_of_its_own_is_finished_on_sigterm(rig: Rig) -> None:
    """``executor="process"``: run by another process, waited for by the worker that ends, and that process ends with it."""
    with fleet_of(rig) as fleet:
        folder = module(rig, "apart", APART)
        fleet.start("coordinator", folder=folder)
        worker = fleet.start("worker", folder=folder)
        fleet.until_ready()
        closed = gate(rig)
        rig.start("parted", workflow="parted", input=closed.name)
        until(fleet.effects, within_ms=30_000, what="the step that waits")
        [begun] = fleet.effects()
        other = begun["pid"]
        assert other != worker.process.pid
        worker.terminate()
        until(lambda: "draining" in worker.log, within_ms=30_000, what="the worker's drain")
        assert worker.process.alive()
        assert Path(f"/proc/{other}").exists()
        closed.touch()
        worker.until_ended()
        until(lambda: not Path(f"/proc/{other}").exists(), what="the end of the step's process")
        rig.until_status("completed", "parted")
        assert rig.run("parted")["result"] == other
        assert outcomes(rig, "parted") == {("apart", "completed", 1): 1}
        assert len(fleet.effects()) == 1
        rig.check()


DYING = """
import os
import signal
from told import effect
from ductor_stream import App, Retry, Run, StepError

app = App("shop")
ONCE = Retry(max_attempts=1)

@app.step(executor="process", retry=ONCE)
def exits() -> None:
    effect(step="exits")
    os._exit(3)

@app.step(executor="process", retry=ONCE)
def killed() -> None:
    effect(step="killed")
    os.kill(os.getpid(), signal.SIGKILL)

@app.step
async def good(n: int) -> int:
    effect(step="good")
    return n

@app.workflow
async def dying(run: Run) -> list[str]:
    found = []
    for step in (exits, killed):
        try:
            await run.step(step)
        except StepError as error:
            found.append(f"{error.error_code} {error.type}: {error.message}")
        found.append(str(await run.step(good, len(found))))
    return found
"""


def test_a_step_that_kills_its_process_is_a_failed_attempt_and_the_worker_lives_on(rig: Rig) -> None:
    """R11: ``executor="process"`` and a process that is gone without a word; the worker's own takes the next task."""
    with fleet_of(rig) as fleet:
        folder = module(rig, "dying", DYING)
        fleet.start("coordinator", folder=folder)
        worker = fleet.start("worker", folder=folder)
        fleet.until_ready()
        rig.start("dying", workflow="dying", input=None)
        rig.until_status("completed", "dying", within_ms=60_000)
        exited, first, shot, second = rig.run("dying")["result"]
        assert exited.startswith("user ProcessDied: ") and "it ended with exit status 3" in exited
        assert shot.startswith("user ProcessDied: ") and "it was ended by SIGKILL" in shot
        assert (first, second) == ("1", "3")
        ended = {("exits", "failed", 1): 1, ("killed", "failed", 1): 1, ("good", "completed", 1): 2}
        assert outcomes(rig, "dying") == ended
        pids = [(each["step"], each["pid"]) for each in fleet.effects()]
        assert [pid for step, pid in pids if step == "good"] == [worker.process.pid] * 2
        assert len({pid for _, pid in pids}) == 3, "each of the others had a process of its own"
        assert worker.metric("ductor_worker_slots_lost") == 0
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
