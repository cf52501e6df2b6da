"""Each deliberate bug is found: the checkers are no decoration. ``docs/proof.md`` has the table."""

from __future__ import annotations

import itertools
import re

import pytest

from ductor_stream.testing.simulation import simulate
from simulation.blind_bugs import BLIND
from simulation.bugs import BUGS

ALL = {**BUGS, **BLIND}

FOUND_AT: dict[str, int] = {
    "dispatch_before_commit": 0,
    "commit_resubmitted_after_an_unknown_outcome_with_offsets_stored_blindly": 0,
    "batch_given_up_for_committed_after_an_unknown_outcome": 0,
    "partitions_kept_after_an_outage": 0,
    "coroutine_kept_after_a_rollback": 1,
    "last_callback_confirms_all": 0,
    "outbox_row_dropped_when_sent": 0,
    "failed_delivery_counts_as_done": 3,
    "outcome_of_a_child_sent_to_the_wrong_home": 0,
    "redrive_forgotten": 0,
    "open_attempts_forgotten_at_take_over": 0,
    "timers_overtake_the_log": 0,
    "timers_lost_at_take_over": 2,
    "offsets_kept_when_a_topic_is_another_one": 50,
    "zombie_not_fenced": 1,
    "execution_left_out_of_the_fence": 5,
    "generation_left_out_of_the_fence": 1,
    "inbox_row_not_consumed": 0,
    "ids_of_messages_not_remembered": 0,
    "stray_record_dropped": 0,
    "losers_of_a_conflict_dropped": 1,
    "task_done_when_taken": 0,
    "result_given_up_when_it_was_not_taken": 0,
    "cache_lets_go_in_the_middle_of_a_batch": 11,
    "watchdog_asleep": 1,
    "confirmed_over_a_gap": 0,
    "timers_remembered_after_close": 1,
    "wake_at_of_a_wide_run_after_reload": 4,
    "unfenced_commit_of_own_inputs": 0,
    "outcome_of_a_former_executions_child": 6,
    "unheard_cancel_dropped_on_continue": 1,
    "bytes_that_were_confirmed_still_count": 6,
    "result_left_out_in_avro": 1,
    "lost_version_checks_not_told": 0,
    "checks_lost_in_place_not_told": 2,
    "lost_rounds_not_counted": 0,
    "whoever_waits_behind_counts_as_a_loser": 118,
    "whatever_was_in_the_inbox_counts_as_a_loser": 0,
    "attempt_committed_past_before_anybody_has_heard_of_it": 102,
    "only_fenced_partitions_retaken": 56,
}
"""Bug -> a seed that finds it: so that the suite need not search again; ``hunt.py`` does."""

MOST = 200
"""Seeds that are searched when the one above has moved: any change of what the product asks of its ports moves it."""

RARE = {
    "topic_ids_asked_again_after_the_comparison",
    "failures_of_all_partitions_taken_at_a_release",
    "deaths_forgiven_only_while_somebody_is_noted",
    "rows_of_losers_named_by_the_clock_alone",
    "reset_to_a_node_that_the_last_event_made_and_dropped",
    "event_that_comes_again_hides_the_end",
    "winners_keep_coroutines_after_a_conflict",
    "identity_by_topic_name",
    "passed_when_once_heard",
    "ledger_finishes_in_another_window",
}
"""Bugs of so rare a constellation that no seed is written down for them: ``hunt.py`` looks further."""


@pytest.mark.parametrize("name", sorted(FOUND_AT))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_bug_is_found(name: str) -> None:
    with ALL[name]():
        said = next(filter(None, (simulate(seed).broken for seed in itertools.chain([FOUND_AT[name]], range(MOST)))))
    assert not re.search(r"ends by itself: (Type|Attribute|Name)Error", said), (
        f"the bug no longer fits the product: {said}"
    )


@pytest.mark.parametrize("seed", sorted(set(FOUND_AT.values())))
def test_without_the_bug_that_seed_passes(seed: int) -> None:
    assert not simulate(seed).broken


def test_every_bug_is_accounted_for() -> None:
    assert ALL.keys() == FOUND_AT.keys() | RARE
