"""Each deliberate bug is found: the checkers are no decoration. ``docs/proof.md`` has the table."""

from __future__ import annotations

import pytest

from ductor_stream.testing.simulation import simulate
from simulation.bugs import BUGS

FOUND_AT: dict[str, int] = {
    "dispatch_before_commit": 0,
    "commit_resubmitted_after_an_unknown_outcome_with_offsets_stored_blindly": 0,
    "batch_given_up_for_committed_after_an_unknown_outcome": 0,
    "partitions_kept_after_an_outage": 0,
    "coroutine_kept_after_a_rollback": 34,
    "last_callback_confirms_all": 2,
    "outbox_row_dropped_when_sent": 0,
    "failed_delivery_counts_as_done": 0,
    "outcome_of_a_child_sent_to_the_wrong_home": 0,
    "redrive_forgotten": 0,
    "open_attempts_forgotten_at_take_over": 1,
    "timers_lost_at_take_over": 37,
    "offsets_kept_when_a_topic_is_another_one": 3,
    "zombie_not_fenced": 3,
    "execution_left_out_of_the_fence": 4,
    "generation_left_out_of_the_fence": 12,
    "inbox_row_not_consumed": 0,
    "ids_of_messages_not_remembered": 0,
    "stray_record_dropped": 0,
    "losers_of_a_conflict_dropped": 0,
    "watchdog_asleep": 13,
}
"""Bug -> a seed that finds it: so that the suite need not search again; ``hunt.py`` does."""

RARE = {
    "cache_lets_go_in_the_middle_of_a_batch",
    "topic_ids_asked_again_after_the_comparison",
    "failures_of_all_partitions_taken_at_a_release",
    "deaths_forgiven_only_while_somebody_is_noted",
}
"""Bugs of so rare a constellation that no seed is written down for them: ``hunt.py`` looks further."""


@pytest.mark.parametrize("name", sorted(FOUND_AT))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_bug_is_found(name: str) -> None:
    with BUGS[name]():
        assert simulate(FOUND_AT[name]).broken


@pytest.mark.parametrize("name", sorted(FOUND_AT))
def test_without_the_bug_that_seed_passes(name: str) -> None:
    assert not simulate(FOUND_AT[name]).broken


def test_every_bug_is_accounted_for() -> None:
    assert BUGS.keys() == FOUND_AT.keys() | RARE
