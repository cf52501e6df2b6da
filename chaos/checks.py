"""What must hold when all is over, one check per rule, with the rule's number in its name.

They decide from a ``History`` alone: what clients sent and heard, what workers executed, and Postgres. Of faults they know
which offsets one has deleted unread (R5, R5b), and which processes ended though no fault had ended them (R11). Executions of an
attempt beyond its first are no fault (R7): they are counted (``redriven``).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chaos.app import Plan, expected
from chaos.checks_clients import CLIENT_CHECKS
from chaos.history import AttemptRow, Commit, History, RunRow
from ductor_stream.cli.demo_checks import Check, repeated
from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.state import Record

Claim = Callable[[History], Iterator[str]]


def _by_run(history: History) -> Iterator[tuple[RunRow, list[Commit]]]:
    commits: dict[str, list[Commit]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.run_id].append(commit)
    yield from ((run, commits[run_id]) for run_id, run in history.runs.items())


def _records(commits: list[Commit]) -> list[Record]:
    return [record for commit in commits for record in commit.records]


def r1_one_owner_after_the_other(history: History) -> Iterator[str]:
    """In each partition, no owner of an older epoch commits after one of a newer; one commit writes one version of a run."""
    latest: dict[int, tuple[int, str]] = {}
    for commit in sorted(history.commits, key=_landed):
        epoch, by = latest.get(commit.partition, (0, ""))
        if commit.epoch < epoch:
            yield f"{commit.run_id}: version {commit.version} under epoch {commit.epoch}, after {epoch} wrote {by}"
        latest[commit.partition] = (max(epoch, commit.epoch), commit.run_id)
    for run, commits in _by_run(history):
        txids = [commit.txid for commit in commits]
        if len(set(txids)) != len(txids) or commits != sorted(commits, key=_landed):
            yield f"{run.run_id}: versions of one transaction, or out of order: {txids[:12]}"


def _landed(commit: Commit) -> tuple[float, int]:
    """The order of commits: a transaction's number is given at its beginning. Only of the oldest may no time be known."""
    return commit.at or 0.0, commit.txid


def r3_record_versions_are_dense(history: History) -> Iterator[str]:
    """A run's history has each version up to its row's, once."""
    for run, commits in _by_run(history):
        versions = [commit.version for commit in commits]
        if versions != list(range(run.folded + 1, run.record_version + 1)):
            yield f"{run.run_id}: its row has version {run.record_version}, its history {_short(versions)}"


def r4_nothing_is_executed_that_no_commit_dispatched(history: History) -> Iterator[str]:
    """Each execution of a step is of an attempt that a commit has dispatched; which was first is not compared."""
    dispatched = {_fence(row) for row in history.attempts if row.phase == "dispatched"}
    for each in history.executed:
        if (each.run, each.execution, each.node, each.generation) not in dispatched:
            yield f"{each.run}: node {each.node}, generation {each.generation} was executed, but never dispatched"


def r4_nothing_is_dispatched_after_the_end(history: History) -> Iterator[str]:
    """No attempt of a closed run is dispatched, whether it has completed or was terminated."""
    for row in history.attempts:
        run = history.runs.get(row.run_id)
        if row.phase == "dispatched" and run is not None and run.closed_at is not None and row.at > run.closed_at:
            yield f"{row.run_id}: node {row.node_id} was dispatched {row.at - run.closed_at:.3f} s after its end"


def r5_nothing_is_left_to_do(history: History) -> Iterator[str]:
    """Outbox and inbox are empty, and nothing is open of what is closed."""
    yield from (f"{count} rows in {what}" for what, count in history.rest.items() if count)


def r6_each_result_counts_once(history: History) -> Iterator[str]:
    """No event is applied out of its order, no attempt has two results, no node is created or completed twice."""
    for run, commits in _by_run(history):
        records = _records(commits)
        order = [(record.execution, record.seq) for record in records]
        if order != sorted(set(order)):
            yield f"{run.run_id}: an event was applied twice or out of order"
        yield from (f"{run.run_id}: {fault}" for fault in repeated(records))


def r6_counters_count(history: History) -> Iterator[str]:
    """The counters agree with the runs."""
    runs = Counter((run.workflow, run.status) for run in history.runs.values())
    if runs != Counter(history.counters):
        yield f"counters say {dict(history.counters)}, there are {dict(runs)}"


def r6_results_are_right(history: History) -> Iterator[str]:
    """What a run returned is what its program makes of its inputs, each taken once."""
    for run_id, run in history.runs.items():
        if run.status != "completed" or run.workflow != "mixed":
            continue
        _, plan = history.wanted.get(run_id, ("child", {"steps": 2}))
        wanted, found = _expected(plan), json.loads(run.result or b"null")
        # Words may come in another order, where they came by different partitions; nothing else may.
        if (sorted(found) != sorted(wanted)) if plan.get("words") else (found != wanted):
            yield f"{run_id}: {found} instead of {wanted}"


def _expected(plan: Mapping[str, Any]) -> list[int]:
    made = Plan(**plan)
    return expected(made, list(range(made.words * made.laps)))


def r7_one_key_per_node(history: History) -> Iterator[str]:
    """All executions of a node have one idempotency key, and no other node has it."""
    keys: dict[tuple[str, int, str], str] = {}
    nodes: dict[str, tuple[str, int, str]] = {}
    for each in history.executed:
        node = (each.run, each.execution, each.node)
        if keys.setdefault(node, each.key) != each.key or nodes.setdefault(each.key, node) != node:
            yield f"{each.run}: node {each.node} of execution {each.execution} has the key {each.key}"


def r8_results_are_of_the_attempt_that_was_open(history: History) -> Iterator[str]:
    """Each result in a run's history was made by a worker for that very attempt."""
    made = {(each.run, each.execution, each.node, each.generation, each.token) for each in history.executed}
    for commit in history.commits:
        for record in commit.records:
            event = record.event
            if isinstance(event, AttemptFinished) and event.outcome == "completed":
                token = json.loads(event.output or b"{}").get("token")
                if (commit.run_id, event.execution, event.node_id, event.generation, token) not in made:
                    yield f"{commit.run_id}: nobody made the result of node {event.node_id}, generation {event.generation}"


def r8_attempts_are_numbered(history: History) -> Iterator[str]:
    """Generations of a node are dispatched in a row, the number of the try goes up with them, and a worker is told it."""
    tries: dict[tuple[str, int, str], dict[int, int]] = defaultdict(dict)
    for row in history.attempts:
        if row.phase == "dispatched":
            tries[row.run_id, row.execution, row.node_id][row.generation] = row.attempt
    for (run_id, _, node), attempts in tries.items():
        numbers = [attempts[generation] for generation in sorted(attempts)]
        if sorted(attempts) != list(range(1, len(attempts) + 1)) or numbers != sorted(numbers) or numbers[0] != 1:
            yield f"{run_id}: node {node} has the generations (tries) {dict(sorted(attempts.items()))}"
    for each in history.executed:
        if tries[each.run, each.execution, each.node].get(each.generation, each.attempt) != each.attempt:
            yield f"{each.run}: node {each.node}, generation {each.generation} was executed as try {each.attempt}"


def r9_each_run_closes(history: History) -> Iterator[str]:
    """Every run that Postgres knows has ended, as its clients wanted it."""
    for run_id, run in history.runs.items():
        kind, _ = history.wanted.get(run_id, ("child", {}))
        wanted = kind if kind in ("cancelled", "terminated") else "completed"
        if run.status != wanted:
            yield f"{run_id} is {run.status}{run.reason and ': '}{run.reason}, not {wanted}"


CHECKS: Mapping[str, Claim] = {
    "R1 one owner after the other": r1_one_owner_after_the_other,
    "R3 record versions are dense": r3_record_versions_are_dense,
    "R4 nothing is executed that no commit dispatched": r4_nothing_is_executed_that_no_commit_dispatched,
    "R4 nothing is dispatched after the end": r4_nothing_is_dispatched_after_the_end,
    "R5 nothing is left to do": r5_nothing_is_left_to_do,
    "R6 each result counts once": r6_each_result_counts_once,
    "R6 counters count": r6_counters_count,
    "R6 results are right": r6_results_are_right,
    "R7 one key per node": r7_one_key_per_node,
    "R8 results are of the attempt that was open": r8_results_are_of_the_attempt_that_was_open,
    "R8 attempts are numbered": r8_attempts_are_numbered,
    "R9 each run closes": r9_each_run_closes,
    **CLIENT_CHECKS,
}


def judged(history: History) -> list[Check]:
    """Every check's outcome."""
    return [Check(claim, list(check(history))) for claim, check in CHECKS.items()]


def redriven(history: History) -> int:
    """How often an attempt was executed again, beyond its first execution."""
    counts = Counter((each.key, each.generation) for each in history.executed)
    return sum(count - 1 for count in counts.values())


def _fence(row: AttemptRow) -> tuple[str, int, str, int]:
    return row.run_id, row.execution, row.node_id, row.generation


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 12 else f"{numbers[:6]}…{numbers[-6:]}"
