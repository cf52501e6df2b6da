"""Properties of the window: what is committed is done, what was done is remembered, within the broker's limit."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ductor_stream.worker.window import METADATA_LIMIT, Window, decode_losses, decode_runs, encode_losses, encode_runs

_STEPS = st.lists(st.one_of(st.integers(0, 3).map(lambda hole: ("take", hole)), st.integers(0, 60).map(lambda n: ("finish", n))), max_size=200)  # fmt: skip


class _Model:
    """The same bookkeeping with plain sets, beside the window."""

    def __init__(self, start: int) -> None:
        self.window = Window(start)
        self.start = start
        self.next = start
        self.undone: list[int] = []
        self.done: set[int] = set()

    def take(self, hole: int) -> None:
        self.done |= set(range(self.next, self.next + hole))
        offset = self.next + hole
        assert self.window.take(offset)
        self.undone.append(offset)
        self.next = offset + 1

    def finish(self, place: int) -> None:
        if self.undone:
            offset = self.undone.pop(place % len(self.undone))
            self.window.finish(offset)
            self.done.add(offset)

    def run(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            getattr(self, name)(number)


def _members(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in runs for offset in range(start, end)}


@given(st.integers(0, 2**40), _STEPS)
def test_the_committed_offset_is_the_lowest_that_is_not_done(start: int, steps: list[tuple[str, int]]) -> None:
    model = _Model(start)
    model.run(steps)
    assert model.window.base == min(model.undone, default=model.next)
    assert model.window.outstanding == len(model.undone)
    assert _members(model.window.runs) == {offset for offset in model.done if offset > model.window.base}


@given(st.integers(0, 2**40), _STEPS)
def test_after_a_restart_exactly_what_was_not_done_is_taken_again(start: int, steps: list[tuple[str, int]]) -> None:
    model = _Model(start)
    model.run(steps)
    again = Window.opened(model.window.base, model.window.metadata())
    log = sorted(set(model.undone) | {offset for offset in model.done if offset >= model.window.base})
    taken = [offset for offset in log if again.take(offset)]
    assert taken == sorted(model.undone)
    for offset in taken:
        again.finish(offset)
    assert again.base == max(model.next, start)
    assert again.runs == []


@given(st.integers(0, 2**40), _STEPS, st.data())
def test_a_commit_past_kept_attempts_leaves_only_the_others(start: int, steps: list[tuple[str, int]], data: st.DataObject) -> None:  # fmt: skip
    model = _Model(start)
    model.run(steps)
    kept = data.draw(st.sets(st.sampled_from(model.undone))) if model.undone else set()
    passing = model.window.passing(kept)
    assert passing.base == min(set(model.undone) - kept, default=model.next)
    assert model.window.base == min(model.undone, default=model.next), "the window itself is as it was"


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), max_size=60), st.integers(0, 2**50))
def test_runs_are_read_back_as_they_were_written(pairs: list[tuple[int, int]], base: int) -> None:
    runs, at = [], base
    for gap, length in pairs:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    assert decode_runs(base, encode_runs(base, runs)) == runs


def _losses(base: int, numbers: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Stretches one after the other, from a gap, a length and a number each."""
    found, at = [], base
    for gap, length, number in numbers:
        found.append((at + gap, at + gap + length, number))
        at += gap + length
    return found


_NUMBERS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 4)), max_size=20)


@given(_NUMBERS, st.integers(0, 2**50))
def test_losses_are_read_back_as_they_were_written(numbers: list[tuple[int, int, int]], base: int) -> None:
    losses = _losses(base, numbers)
    for done in ("1", encode_runs(base, [(base + 1, base + 7)])):
        told = done + encode_losses(base, losses)
        assert decode_losses(base, told) == losses
        assert decode_runs(base, told) == decode_runs(base, done)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)), max_size=6), st.integers(0, 40))
def test_one_loss_is_forgiven_of_one_offset_alone(numbers: list[tuple[int, int, int]], offset: int) -> None:
    window = Window(0, (), _losses(0, numbers))
    want = {each: max(0, window.losses_under(each) - (each == offset)) for each in range(60)}
    window.forgive(offset)
    assert {each: window.losses_under(each) for each in range(60)} == want


def test_losses_that_do_not_fit_are_left_out_from_the_end() -> None:
    losses = _losses(0, [(2, 1, 1 + n % 3) for n in range(5_000)])
    told = encode_losses(0, losses, 1_000)
    assert 990 < len(told) <= 1_000
    read = decode_losses(0, "1" + told)
    assert read == losses[: len(read)]
    assert encode_losses(0, losses, 3) == ""


@given(st.integers(0, 2**40), _STEPS, _NUMBERS, st.integers(0, 60))
def test_what_is_taken_is_a_loss_unless_it_is_handed_over(start: int, steps: list[tuple[str, int]], numbers: list[tuple[int, int, int]], more: int) -> None:  # fmt: skip
    before = Window(start, (), _losses(start, numbers))
    model = _Model(start)
    model.window = Window(start, (), before.losses)
    model.run(steps)
    again = Window.opened(model.window.base, model.window.metadata())
    ahead = range(model.next, model.next + 60)
    want = {o: before.losses_under(o) + 1 for o in model.undone} | {o: before.losses_under(o) for o in ahead}
    assert {o: again.losses_under(o) for o in want} == want
    handed = Window.opened(model.window.base, model.window.metadata(handed_over=True))
    assert {o: handed.losses_under(o) for o in want} == {o: before.losses_under(o) for o in want}

    log = sorted({*model.undone, *ahead} | {offset for offset in model.done if offset >= model.window.base})
    taken = {offset for offset in log[:more] if again.take(offset)}
    third = Window.opened(again.base, again.metadata())
    assert {o: third.losses_under(o) for o in want} == {o: number + (o in taken) for o, number in want.items()}


@given(st.text(max_size=50), st.integers(0, 2**50))
def test_foreign_metadata_never_skips_a_task_below_the_base_or_fails(text: str, base: int) -> None:
    for candidate in (text, "1" + text):
        runs = decode_runs(base, candidate)
        assert all(base < start < end for start, end in runs)
        assert all(base <= start <= end for start, end, _ in decode_losses(base, candidate))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32))
def test_while_there_is_room_the_metadata_holds_everything_whatever_finishes(spread: int, seed: int) -> None:
    window = Window(0)
    taken = []
    while window.has_room():
        offset = window.position
        window.take(offset)
        taken.append(offset)
        # Every other one stays open: the worst there is for run lengths.
        if offset % (spread + 1):
            window.finish(offset)
    open_ones = [offset for offset in taken if not offset % (spread + 1)]
    random.Random(seed).shuffle(open_ones)
    for place, offset in enumerate(open_ones):
        if place % 20:
            window.finish(offset)
            continue
        assert len(window.metadata()) <= METADATA_LIMIT
        assert decode_runs(window.base, window.metadata()) == window.runs
        window.finish(offset)


def test_taking_stops_with_about_a_thousand_attempts_open_on_one_partition() -> None:
    window = Window(10**12)
    while window.has_room():
        window.take(window.position)
    assert 1_000 < window.outstanding < 2_100


def test_one_slow_attempt_holds_back_nothing() -> None:
    window = Window(0)
    window.take(0)
    for offset in range(1, 100_000):
        assert window.take(offset)
        window.finish(offset)
    assert window.has_room()
    assert (window.base, window.metadata(handed_over=True)) == (0, encode_runs(0, [(1, 100_000)]))
    window.finish(0)
    assert (window.base, window.metadata()) == (100_000, "")


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    runs = [(2 * n + 1, 2 * n + 2) for n in range(5_000)]
    text = encode_runs(0, runs)
    assert len(text) <= METADATA_LIMIT
    assert decode_runs(0, text) == runs[: len(decode_runs(0, text))]


def test_runs_that_were_read_back_count_as_room_until_they_are_passed() -> None:
    runs = [(2 * n + 1, 2 * n + 2) for n in range(2_000)]
    window = Window.opened(0, encode_runs(0, runs))
    taken = 0
    while window.has_room():
        taken += window.take(window.position)
    assert len(window.metadata()) <= METADATA_LIMIT
    assert window.position > 0, "the first one behind the runs can always be taken"
    assert taken > 0


def test_a_log_that_went_back_is_told() -> None:
    window = Window(10)
    window.take(10)
    assert window.is_rewind(3)
    assert not window.is_rewind(11)


def test_finishing_twice_or_what_was_never_taken_changes_nothing() -> None:
    window = Window(5)
    window.take(5)
    window.finish(5)
    window.finish(5)
    window.finish(77)
    assert (window.base, window.runs) == (6, [])
