"""A row that Postgres will not take is traced to its run, and its neighbours are not held up (protocol 23)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from store_rigs import (
    T0,
    Owner,
    PostgresRig,
    database_fixture,
    rig_fixture,
)

from ductor_stream.errors import InvariantViolation, OwnershipLost, PoisonedRun, RecordVersionConflict

OVER_AN_INDEX = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(200))
"""12,800 characters that do not compress: more than an index entry can hold."""


database = database_fixture()
rig = rig_fixture()


@pytest.fixture
def owner(rig: PostgresRig) -> Owner:
    return Owner(rig.open())


def poisoned(owner: Owner, kind: str) -> dict[str, Any]:
    """Parts of a batch in which run ``bad`` has something that cannot be stored."""
    parts: dict[str, dict[str, Any]] = {
        "nul in text": {"attempts": [owner.attempt("bad", step="\0")]},
        "lone surrogate": {"attempts": [owner.attempt("bad", queue="\udead")]},
        "number out of range": {"attempts": [owner.attempt("bad", attempt=2**40)]},
        "time out of range": {"attempts": [owner.attempt("bad", at=T0 * 10**6)]},
        "over an index": {"messages": [owner.message("bad", OVER_AN_INDEX)]},
        "refused by a check": {"messages": [owner.message("bad", "m", kind="gossip")]},
        "null": {"attempts": [owner.attempt("bad", worker=None)]},
        "token that is none": {"open_attempts": [owner.open_attempt("bad", token="x")]},
    }
    return parts[kind]


KINDS = [
    "nul in text",
    "lone surrogate",
    "number out of range",
    "time out of range",
    "over an index",
    "refused by a check",
    "null",
    "token that is none",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("neighbours", [0, 1, 20])
def test_the_run_is_found_and_nothing_lands(rig: PostgresRig, owner: Owner, kind: str, neighbours: int) -> None:
    others = [f"run-{n:02}" for n in range(neighbours)]
    owner.commit("bad", *others)
    before = rig.everything()
    with pytest.raises(PoisonedRun) as caught:
        owner.commit(*others, "bad", **poisoned(owner, kind))
    assert caught.value.run_id == "bad"
    assert caught.value.reason == "poisoned_run"
    assert rig.everything() == before
    owner.commit(*others, "bad")


def test_a_run_whose_id_is_over_an_index(rig: PostgresRig, owner: Owner) -> None:
    with pytest.raises(PoisonedRun, match="index row") as caught:
        owner.commit("r", "s", OVER_AN_INDEX)
    assert caught.value.run_id == OVER_AN_INDEX


def test_of_two_poisoned_runs_one_is_found_then_the_other(owner: Owner) -> None:
    bad = {run_id: owner.write(run_id, reason="\0") for run_id in ("bad-1", "bad-2")}
    good = [f"run-{n}" for n in range(6)]
    while bad:
        with pytest.raises(PoisonedRun) as caught:
            owner.commit(*good, *bad.values())
        del bad[caught.value.run_id]
    owner.commit(*good)


def test_the_fence_and_the_versions_go_before_poison(rig: PostgresRig, owner: Owner) -> None:
    owner.commit("r")
    with pytest.raises(RecordVersionConflict):
        owner.commit(owner.write("r", 7), owner.write("bad", reason="\0"))
    Owner(rig.open())
    with pytest.raises(OwnershipLost):
        owner.commit(owner.write("bad", reason="\0"))


def test_poison_under_a_lock_ends_the_lock(rig: PostgresRig, owner: Owner) -> None:
    owner.commit("r", "bad")
    owner.store.lock(["r", "bad"])
    with pytest.raises(PoisonedRun):
        owner.commit("r", owner.write("bad", reason="\0"))
    assert rig.rows("select pid from pg_stat_activity where state like 'idle in transaction%%'") == []
    owner.commit("r", "bad")


def test_poison_that_belongs_to_no_run_is_our_bug(rig: PostgresRig, owner: Owner) -> None:
    before = rig.everything()
    for parts in (
        {"inbox": [owner.mail("\0")]},
        {"inbox": [owner.mail("")]},
        {"inbox": [owner.mail(OVER_AN_INDEX)]},
        {"counters": {(1, "\0", "running"): 1}},
        {"payloads": [("\0", b"")]},
    ):
        with pytest.raises(InvariantViolation, match="no reason is to be found"):
            owner.commit("r", **parts)
    assert rig.everything() == before
