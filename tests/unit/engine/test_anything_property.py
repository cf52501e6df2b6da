"""Whatever happens to a run, in any order: no tick raises, and what must always hold does.

Results, forged results, duplicates, signals, time-outs, every command, restarts, code that goes and comes, lost caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle, StartChild
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.events import (
    AttemptFinished,
    ChildFinished,
    Condemned,
    Forked,
    OnConflict,
    Redeployed,
    RunStarted,
    TimerFired,
)
from ductor_stream.engine.state import decode_header, encode_header, state_bytes
from ductor_stream.engine.tick import Stamped, Tick, rebuild
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import examples, function_of, programs, workflow


class Watched(Driver):
    """A run of which each tick is looked at."""

    def apply(self, *events: Stamped) -> Tick:
        done = super().apply(*events)
        self.check_counts()
        self.check_fold()
        self.check_sent(done)
        return done

    def check_counts(self) -> None:
        """Numbers are dense, and time never goes back."""
        seqs = [record.seq for record in self.history()]
        assert seqs == list(range(1, self.header.seq + 1))
        told = [action.seq for action in self.done(EmitLifecycle) if action.type != "start.answered"]
        assert told == list(range(1, self.header.lifecycle_seq + 1))
        times = [record.now for record in self.records]
        assert times == sorted(times)

    def check_fold(self) -> None:
        """The records give the state, and the state is sound."""
        built = rebuild("r", self.history())
        built.header.lifecycle_seq = self.header.lifecycle_seq
        assert state_bytes(built) == state_bytes(self.state)
        assert decode_header(encode_header(self.header)) == self.header
        assert self.header.parked is None or self.status in ("suspended", "paused")
        assert not self.state.closed or (self.state.nodes, self.state.held, self.live) == ({}, [], None)

    def check_sent(self, done: Tick) -> None:
        """Only what is awaited is sent, and only by a run that is running or was just told to do it again."""
        asked = any(isinstance(record.event, Forked) for record in done.records)
        for action in done.actions:
            if isinstance(action, (DispatchAttempt, StartChild)):
                assert self.status == "running" or asked
                assert self.state.nodes[action.node.node_id] == action.node


class Chaos:
    """One run, and all that may happen to it by number."""

    def __init__(self, definition: WorkflowDefinition) -> None:
        self.definition = definition
        self.driver = Watched(definition)
        self.acts: list[Callable[[int], Any]] = [
            *[self._something_usual] * 12,
            lambda n: self.driver.order("pause"),
            *[lambda n: self.driver.order("resume")] * 2,
            lambda n: self.driver.order("cancel") if n % 3 == 0 else None,
            lambda n: self.driver.order("terminate") if n % 6 == 0 else None,
            lambda n: self.driver.deploy(),
            *[self._code_comes] * 2,
            self._start_again,
            lambda n: self.driver.order("retry"),
            lambda n: self.driver.order("reset", to_node=self._some_node(n)),
            lambda n: self.driver.order("reset", to_transition=n % 9 + 1),
            lambda n: self.driver.apply(self.driver.applied[n % len(self.driver.applied)]),
            lambda n: self.driver.lose(),
            self._forge,
            lambda n: self.driver.hear(Condemned("stuck", "no progress")) if n % 9 == 0 else None,
            lambda n: self.driver.pass_time(self.driver.header.now + n * 97),
        ]

    def _something_usual(self, number: int) -> None:
        if not self.driver.state.closed and (found := self.driver.possible(number)):
            found[number % len(found)]()

    def _code_comes(self, number: int) -> None:
        self.driver.deploy(self.definition)
        self.driver.hear(Redeployed(self.definition.digest, "1"))

    def _start_again(self, number: int) -> None:
        kinds: tuple[OnConflict, ...] = get_args(OnConflict)
        self.driver.hear(RunStarted("wf", "1", b"null", f"s{number}", on_conflict=kinds[number % len(kinds)]))

    def _some_node(self, number: int) -> str:
        return str(number % 4 + 1)

    def _forge(self, number: int) -> None:
        """A result, timer or outcome for a fence that is perhaps nobody's."""
        fence = (number % 3 + 1, self._some_node(number), number % 4 + 1)
        self.driver.hear(AttemptFinished(*fence, "completed", b'"forged"'))
        self.driver.hear(TimerFired(*fence))
        self.driver.hear(ChildFinished(fence[0], fence[1], "child", "completed", None))


@examples(100)
@given(programs, st.lists(st.tuples(st.integers(0, 26), st.integers(0, 999)), min_size=15, max_size=50))
@abandoning()
def test_whatever_happens(program: Any, happenings: list[tuple[int, int]]) -> None:
    chaos = Chaos(workflow(function_of(program)))
    chaos.driver.start()
    for kind, number in happenings:
        chaos.acts[kind % len(chaos.acts)](number)
    assert chaos.driver.header.parked is None or chaos.driver.parked[0] == "version_missing"
