"""A small history in which everything is right, to be doctored: two runs, one that completes and one that is terminated."""

from __future__ import annotations

import json
from typing import Any

from chaos.history import AttemptRow, Commit, Executed, History, RunRow, Sent
from ductor_stream.engine.events import AnyEvent, AttemptFinished, CommandReceived, RunStarted, SignalReceived
from ductor_stream.engine.state import Completed, NodeCreated, Record, encode_records

RUN, ENDED = "words-000001", "terminated-000002"
PLAN: dict[str, Any] = {"steps": 1, "words": 2}
ANSWER = json.dumps({"value": 0, "token": "t1"}).encode()


def commit(run: str, version: int, *events: AnyEvent, epoch: int = 1, txid: int = 0, decided: Any = ()) -> Commit:
    """A commit with these events; by default the transactions of all runs are numbered by their versions."""
    records = [
        Record(1, version * 10 + n, version * 1000, event, list(decided) if n == 0 else [])
        for n, event in enumerate(events)
    ]
    return Commit(run, version, epoch, txid or version, float(version), 0, encode_records(records))


def started(run: str) -> RunStarted:
    """Its start."""
    return RunStarted("mixed", "1", b"null", f"{run}/start")


def said(number: int) -> SignalReceived:
    """One of its words."""
    return SignalReceived(f"{RUN}/word-{number}", "word", str(number).encode())


def finished(output: bytes = ANSWER, generation: int = 1) -> AttemptFinished:
    """The result of its step."""
    return AttemptFinished(1, "1", generation, "completed", output)


def heard(run: str, seq: int, status: str) -> dict[str, Any]:
    """A lifecycle event."""
    data = {"run_id": run, "execution": 1, "seq": seq, "status": status}
    return {"at": float(seq), "what": "lifecycle", "id": f"{run}/1/{seq}", "data": data}


def sent(run: str, name: str, kind: str, offset: int) -> Sent:
    """A message that was sent once, and stands there in partition 0."""
    return Sent(f"{run}/{name}", run, kind, float(offset), 1, [(1, 0, offset)])


def history() -> History:
    """Everything is right in it."""
    messages = [
        sent(RUN, "start", "run.start", 0),
        sent(RUN, "word-0", "run.signal", 1),
        sent(RUN, "word-1", "run.signal", 2),
        sent(ENDED, "start", "run.start", 3),
        sent(ENDED, "end", "run.terminate", 4),
    ]
    step = NodeCreated("1", "step", "pick")
    return History(
        runs={
            RUN: RunRow(RUN, "mixed", "completed", "", 1, 4, 4.0, b"[0, 0, 1]", 0),
            ENDED: RunRow(ENDED, "endless", "terminated", "", 1, 2, 6.0, None, 0),
        },
        commits=[
            commit(RUN, 1, started(RUN), decided=[step]),
            commit(RUN, 2, finished()),
            commit(RUN, 3, said(0)),
            commit(RUN, 4, said(1), decided=[Completed(b"[0, 0, 1]")]),
            commit(ENDED, 1, started(ENDED), txid=5),
            commit(ENDED, 2, CommandReceived("terminate", f"{ENDED}/end"), txid=6),
        ],
        attempts=[
            AttemptRow(RUN, 1, "1", 1, "dispatched", 1, 1.0),
            AttemptRow(RUN, 1, "1", 1, "finished", 1, 2.0),
        ],
        applied={(each.run, each.id) for each in messages},
        rest={"outbox": 0, "inbox": 0},
        counters={("mixed", "completed"): 1, ("endless", "terminated"): 1},
        wanted={RUN: ("words", PLAN), ENDED: ("terminated", {"steps": 0})},
        sent={each.id: each for each in messages},
        executed=[Executed(1.5, RUN, 1, "1", 1, 1, f"chaos/{RUN}/1/1", "t1")],
        lifecycle=[
            heard(RUN, 1, "running"),
            heard(RUN, 2, "completed"),
            heard(ENDED, 1, "running"),
            heard(ENDED, 2, "terminated"),
        ],
    )
