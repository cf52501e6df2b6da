"""The checks of chaos bite: each finds what is wrong in a history that was doctored for it, and in none that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from unit.chaos.history_of_two import ENDED, RUN, commit, finished, heard, history, said, started

from chaos.checks import CHECKS, judged, redriven
from chaos.history import AttemptRow, History
from chaos.load import Lost

Doctor = Callable[[History], object]


def lost_unread(partition: int, offset: int) -> dict[str, str]:
    """The dead letter of a range of a client's topic."""
    letter = {"key": "", "reason": "lost_unread", "source-topic": "ductor.chaos.run-events"}
    return {**letter, "source-partition": str(partition), "source-offset": str(offset)}


def _epoch_goes_back(found: History) -> None:
    found.commits[2:4] = [commit(RUN, 3, said(0), epoch=3), commit(RUN, 4, said(1), epoch=2)]


def _an_older_epoch_that_began_first_and_landed_last(found: History) -> None:
    found.commits[2:4] = [commit(RUN, 3, said(0), epoch=3, txid=9), commit(RUN, 4, said(1), epoch=2, txid=8)]


def _one_transaction_for_two_versions(found: History) -> None:
    found.commits[3] = commit(RUN, 4, said(1), txid=3)


def _a_version_is_missing(found: History) -> None:
    del found.commits[1]


def _a_step_nobody_dispatched(found: History) -> None:
    found.executed.append(replace(found.executed[0], generation=2))


def _dispatched_after_terminate(found: History) -> None:
    found.attempts.append(AttemptRow(ENDED, 1, "9", 1, "dispatched", 1, 7.0))


def _outbox_left(found: History) -> None:
    found.rest = {"outbox": 3}


def _two_results(found: History) -> None:
    found.commits[2] = commit(RUN, 3, said(0), finished())


def _events_out_of_order(found: History) -> None:
    found.commits[2] = replace(found.commits[2], raw=found.commits[0].raw)


def _a_counter_off_by_one(found: History) -> None:
    found.counters = {("mixed", "completed"): 2, ("endless", "terminated"): 1}


def _a_word_heard_twice(found: History) -> None:
    found.runs[RUN] = replace(found.runs[RUN], result=b"[0, 0, 0]")


def _a_key_of_two_nodes(found: History) -> None:
    found.executed.append(replace(found.executed[0], node="2"))


def _a_result_out_of_nowhere(found: History) -> None:
    found.commits[1] = commit(RUN, 2, finished(b'{"value": 0, "token": "another"}'))


def _a_result_of_another_generation(found: History) -> None:
    found.commits[1] = commit(RUN, 2, finished(generation=2))


def _a_generation_left_out(found: History) -> None:
    found.attempts.append(AttemptRow(RUN, 1, "1", 3, "dispatched", 2, 1.0))


def _a_try_counted_wrong(found: History) -> None:
    found.executed.append(replace(found.executed[0], attempt=2))


def _a_run_that_hangs(found: History) -> None:
    found.runs[RUN] = replace(found.runs[RUN], status="running", closed_at=None)


def _completed_though_terminated(found: History) -> None:
    found.runs[ENDED] = replace(found.runs[ENDED], status="completed")


def _a_signal_lost(found: History) -> None:
    found.applied.remove((RUN, f"{RUN}/word-1"))


def _a_start_lost(found: History) -> None:
    del found.runs[ENDED]


def _never_taken_by_the_broker(found: History) -> None:
    found.sent[f"{RUN}/word-1"].places.clear()


def _deleted_and_nobody_says_so(found: History) -> None:
    found.lost.append(Lost(1, 3, 10, 12, 10, "A"))


def _deleted_twice_and_said_once(found: History) -> None:
    found.lost += [Lost(1, 3, 0, 2, 0, ""), Lost(2, 3, 0, 4, 0, "B")]
    found.letters.append(lost_unread(3, 0))


def _a_signal_applied_twice(found: History) -> None:
    found.commits[3] = commit(RUN, 4, said(0))


def _a_start_applied_twice(found: History) -> None:
    found.commits[3] = commit(RUN, 4, started(RUN))


def _two_ends(found: History) -> None:
    found.lifecycle.append(heard(RUN, 3, "failed"))


def _a_gap_in_what_clients_hear(found: History) -> None:
    del found.lifecycle[0]


def _one_number_on_two_events(found: History) -> None:
    found.lifecycle.append(heard(RUN, 1, "suspended"))


def _an_honest_message_set_aside(found: History) -> None:
    found.letters.append({"key": RUN, "reason": "tick_failed", "error": "stumbled"})


def _a_process_that_fell(found: History) -> None:
    found.fallen.append({"place": "worker-1", "ending": "killed by signal 11", "told": "Segmentation fault"})


def _a_process_that_had_to_be_killed(found: History) -> None:
    found.lines.append({"what": "ended", "place": "worker-1", "status": -9, "seconds": 60.0})


def _a_process_that_does_not_start(found: History) -> None:
    found.lines.append({"what": "silent", "places": ["worker-1"]})


def _words_in_another_order(found: History) -> None:
    found.commits[2:4] = [commit(RUN, 3, said(1)), commit(RUN, 4, said(0))]


DOCTORED: list[tuple[str, Doctor]] = [
    ("R1 one owner after the other", _epoch_goes_back),
    ("R1 one owner after the other", _an_older_epoch_that_began_first_and_landed_last),
    ("R1 one owner after the other", _one_transaction_for_two_versions),
    ("R3 record versions are dense", _a_version_is_missing),
    ("R4 nothing is executed that no commit dispatched", _a_step_nobody_dispatched),
    ("R4 nothing is dispatched after the end", _dispatched_after_terminate),
    ("R5 nothing is left to do", _outbox_left),
    ("R6 each result counts once", _two_results),
    ("R6 each result counts once", _events_out_of_order),
    ("R6 counters count", _a_counter_off_by_one),
    ("R6 results are right", _a_word_heard_twice),
    ("R7 one key per node", _a_key_of_two_nodes),
    ("R8 results are of the attempt that was open", _a_result_out_of_nowhere),
    ("R8 results are of the attempt that was open", _a_result_of_another_generation),
    ("R8 attempts are numbered", _a_generation_left_out),
    ("R8 attempts are numbered", _a_try_counted_wrong),
    ("R9 each run closes", _a_run_that_hangs),
    ("R9 each run closes", _completed_though_terminated),
    ("R5 nothing acknowledged is lost", _a_signal_lost),
    ("R5 nothing acknowledged is lost", _a_start_lost),
    ("R5 everything was acknowledged", _never_taken_by_the_broker),
    ("R5b what was lost unread is audited", _deleted_and_nobody_says_so),
    ("R5b what was lost unread is audited", _deleted_twice_and_said_once),
    ("R6 each message is applied once", _a_signal_applied_twice),
    ("R6 each message is applied once", _a_start_applied_twice),
    ("R9 clients hear one end", _two_ends),
    ("R9 clients hear one end", _a_gap_in_what_clients_hear),
    ("R9 clients hear one end", _one_number_on_two_events),
    ("R11 nobody else suffers", _an_honest_message_set_aside),
    ("R11 nobody else suffers", _a_process_that_fell),
    ("R11 nobody else suffers", _a_process_that_had_to_be_killed),
    ("R11 nobody else suffers", _a_process_that_does_not_start),
    ("R12 order of a source is kept", _words_in_another_order),
]


def test_a_history_in_which_all_is_right_passes() -> None:
    assert [(check.claim, check.faults) for check in judged(history()) if not check.holds] == []


@pytest.mark.parametrize(("claim", "doctor"), DOCTORED, ids=lambda value: getattr(value, "__name__", value))
def test_each_check_bites(claim: str, doctor: Doctor) -> None:
    found = history()
    doctor(found)
    assert list(CHECKS[claim](found))


def test_each_check_is_tried() -> None:
    assert {claim for claim, _ in DOCTORED} == set(CHECKS)


def test_every_check_is_of_a_rule() -> None:
    assert all(claim.split()[0].lstrip("R").rstrip("b").isdigit() for claim in CHECKS)


def test_what_a_fault_deleted_unread_may_be_missing_and_must_be_audited() -> None:
    """Only that: a message that stands beside the range must be applied."""
    found = history()
    found.applied -= {(RUN, f"{RUN}/word-1"), (RUN, f"{RUN}/word-0")}
    found.lost.append(Lost(1, 0, 2, 3, 2, "A"))
    found.letters.append(lost_unread(0, 2))
    broken = {check.claim: check.faults for check in judged(found) if not check.holds}
    assert list(broken) == ["R5 nothing acknowledged is lost"]
    assert [fault.split()[0] for fault in broken["R5 nothing acknowledged is lost"]] == [f"{RUN}/word-0"]


def test_two_losses_of_which_nobody_noticed_the_first_are_audited_by_one_letter() -> None:
    found = history()
    found.lost += [Lost(1, 3, 0, 2, 0, "A"), Lost(2, 3, 0, 4, 0, "A")]
    found.letters.append(lost_unread(3, 0))
    assert all(check.holds for check in judged(found))


def test_executions_of_one_attempt_are_counted_and_no_fault() -> None:
    found = history()
    found.executed += [found.executed[0]] * 2
    assert redriven(found) == 2
    assert all(check.holds for check in judged(found))


def test_a_process_may_give_up_and_say_why() -> None:
    found = history()
    found.fallen.append(
        {"place": "coordinator-1", "ending": "exit status 5", "told": "error: Postgres cannot be reached"}
    )
    assert all(check.holds for check in judged(found))


def test_order_says_nothing_of_what_was_sent_twice_or_came_by_two_partitions() -> None:
    found = history()
    _words_in_another_order(found)
    found.sent[f"{RUN}/word-0"].tries = 2
    assert list(CHECKS["R12 order of a source is kept"](found)) == []
    found.sent[f"{RUN}/word-0"].tries = 1
    found.sent[f"{RUN}/word-0"].places = [(1, 4, 0)]
    assert list(CHECKS["R12 order of a source is kept"](found)) == []
