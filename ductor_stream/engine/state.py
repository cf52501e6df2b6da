"""The state of a run, and the records of its history from which it can be rebuilt.

The run row holds only the small header; open nodes, buffered signals and held facts are
rebuilt by folding the records of the current execution (``tick.rebuild``), so that a run of
10,000 open nodes does not rewrite them at each commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ductor_stream.engine.definition import ChildOptions, StepOptions
from ductor_stream.engine.events import AnyEvent, ContinuedInPlace, Failure, Parent

FORMAT = 2
"""Number of the latest layout of states and records; a reader refuses a higher one (protocol 19).

Written is the first one that can say it, so that the last release goes on with every run that needs nothing new:
1 is that of headers, and of records but for ``ContinuedInPlace``, which is 2.
"""

PLAIN_FORMAT = 1

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last moment that every client and database can write. A timer beyond it waits till then."""

Status = Literal["running", "suspended", "paused", "completed", "failed", "cancelled", "terminated", "timed_out"]
CLOSED: frozenset[str] = frozenset({"completed", "failed", "cancelled", "terminated", "timed_out"})

NodeKind = Literal["step", "timer", "signal", "child"]
NodeStatus = Literal["dispatched", "backoff", "waiting"]


class Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An open node: a place in a run where something is awaited. Closed nodes are only in the history.

    Times are milliseconds since 1970 UTC. ``due_at`` is when a timer fires or a back-off ends;
    ``created_at`` is the ``now`` of the event that created the node; ``rejections`` counts workers
    that could not take it; ``details`` is what the last attempt's heartbeat said (JSON);
    ``key_execution`` is the execution in the idempotency key, where it is not the current one (run.retry);
    ``redrives`` counts how often this attempt was sent again since its task was lost, last at ``sent_at`` (0: never).
    """

    node_id: str
    kind: NodeKind
    name: str
    status: NodeStatus
    created_at: int
    input: bytes = b""
    options: StepOptions | None = None
    due_at: int | None = None
    generation: int = 1
    attempt: int = 1
    dispatched_at: int = 0
    rejections: int = 0
    last_failure: Failure | None = None
    details: bytes | None = None
    child: ChildOptions | None = None
    key_execution: int = 0
    redrives: int = 0
    sent_at: int = 0


# -- facts: what reduce tells the planner ---------------------------------------------------


class Fact(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all facts: what a planner needs to know of an event, after ``reduce`` has judged it."""


class Begun(Fact, frozen=True, tag="begun"):
    """The execution begins."""


class StepDone(Fact, frozen=True, tag="done"):
    """A step node has its result, as JSON."""

    node_id: str
    output: bytes


class StepFailed(Fact, frozen=True, tag="failed"):
    """A step node failed for good, after so many attempts."""

    node_id: str
    failure: Failure
    attempts: int


class TimerDue(Fact, frozen=True, tag="due"):
    """A timer node came due."""

    node_id: str


class SignalArrived(Fact, frozen=True, tag="signal"):
    """A signal is there; ``payload`` is JSON."""

    signal_id: str
    name: str
    payload: bytes


class ChildDone(Fact, frozen=True, tag="child_done"):
    """A child run has completed, with its result as JSON."""

    node_id: str
    result: bytes


class ChildFailed(Fact, frozen=True, tag="child_failed"):
    """A child run has ended otherwise; ``status`` says how."""

    node_id: str
    child_run_id: str
    status: str
    failure: Failure | None


class CancelRequested(Fact, frozen=True, tag="cancel"):
    """The run is to end by itself."""

    reason: str


AnyFact = Begun | StepDone | StepFailed | TimerDue | SignalArrived | ChildDone | ChildFailed | CancelRequested


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact that the planner has not seen yet, since the run is paused or suspended, with its own time.

    ``node`` is what has failed, if that is what it tells: a retry tries it again.
    """

    now: int
    fact: AnyFact
    node: Node | None = None


# -- decisions: what the planner says -------------------------------------------------------


class Decision(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all decisions of a planner."""


class NodeCreated(Decision, frozen=True, tag="node"):
    """The workflow awaits something new. ``input`` is JSON; ``due_at`` is set for timers only."""

    node_id: str
    kind: NodeKind
    name: str
    input: bytes = b""
    options: StepOptions | None = None
    due_at: int | None = None
    child: ChildOptions | None = None


class NodeDropped(Decision, frozen=True, tag="drop"):
    """The workflow no longer awaits the node: a lost race, a cancelled task."""

    node_id: str


class SignalTaken(Decision, frozen=True, tag="taken"):
    """The workflow consumed a buffered signal, at a waiting node or without waiting (then ``node_id`` is None)."""

    signal_id: str
    node_id: str | None


class SignalPassedOver(Decision, frozen=True, tag="passed"):
    """As ``SignalTaken``, but its payload did not fit the type that the code asks for: the code never saw it.

    Recorded, so that a replay by code that could read it passes it over too, and does not go another way.
    """

    signal_id: str
    node_id: str | None


class Patched(Decision, frozen=True, tag="patched"):
    """The workflow asked for a change by its name, and has it from here on."""

    change: str


class ViewSet(Decision, frozen=True, tag="view"):
    """What the run shows of itself from now on, as JSON."""

    view: bytes


class ContinuedAsNew(Decision, frozen=True, tag="continue"):
    """The workflow ends this execution and asks for the next one; an empty ``version`` keeps the version.

    ``cancel_heard``: a cancel of the run had reached the code. One that had not is told to the next execution.
    """

    input: bytes
    version: str
    cancel_heard: bool = False


class Completed(Decision, frozen=True, tag="completed"):
    """The workflow returned; ``result`` is JSON."""

    result: bytes


class Failed(Decision, frozen=True, tag="failed"):
    """The workflow ended by an error that fails a run."""

    failure: Failure


class Cancelled(Decision, frozen=True, tag="cancelled"):
    """The workflow let CancelledError out, after a cancel."""


AnyDecision = (
    NodeCreated
    | NodeDropped
    | SignalTaken
    | SignalPassedOver
    | Patched
    | ViewSet
    | ContinuedAsNew
    | Completed
    | Failed
    | Cancelled
)


SUSPENSIONS: Final = ("bug", "died", "nondeterminism", "overrun", "stuck", "version_missing")
"""``code`` of a ``Parked``: each has its section in docs/errors/codes/suspensions.md."""


class Parked(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run is suspended; ``code`` is one of SUSPENSIONS.

    ``digest`` names the code that could not go on: other code is worth another try.
    """

    code: str
    message: str
    digest: str = ""
    stack: str | None = None


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event of a run's history: its order, its ``now``, and what the planner made of it.

    ``decisions`` is None when the planner was not asked or could not answer; then ``parked`` may say why.
    """

    execution: int
    seq: int
    now: int
    event: AnyEvent
    decisions: list[AnyDecision] | None = None
    parked: Parked | None = None


class Header(msgspec.Struct, array_like=True):
    """The small part of a run's state that its row holds. Times are milliseconds since 1970 UTC.

    ``seq`` is the order of the last event applied in this execution, ``now`` its time,
    ``lifecycle_seq`` the last number given to a lifecycle event of this run (dense, over executions).
    ``origin`` is the execution that a retry or reset took its history from (0: none): what the run's code sees.
    ``started_at`` is that of the origin too. ``run_due_at`` is ``run_timeout_ms`` after
    the start, or after the last retry or reset. ``since`` (0: this execution) is when the last reset of a retried run was, or
    its origin: children of a later one are its own.
    """

    format: int
    run_id: str
    workflow: str
    version: str
    execution: int
    status: Status
    seq: int
    now: int
    lifecycle_seq: int
    started_at: int
    input: bytes
    run_due_at: int | None = None
    cancel_requested: bool = False
    parked: Parked | None = None
    result: bytes | None = None
    failure: Failure | None = None
    context: dict[str, str] = {}
    parent: Parent | None = None
    view: bytes | None = None
    origin: int = 0
    run_timeout_ms: int | None = None
    since: int = 0


class RunState(msgspec.Struct):
    """Everything that a tick knows of a run. Only ``tick`` changes one, and only a clone of its own.

    ``span`` says about how many bytes the earlier executions take that this one leans on (see ``ContinuedInPlace``), ``size``
    those of its own records.
    """

    header: Header
    nodes: dict[str, Node] = {}
    signals: list[SignalArrived] = []
    held: list[Held] = []
    span: int = 0
    size: int = 0

    def clone(self) -> RunState:
        """A copy that can be changed without the original being touched (nodes and facts are frozen)."""
        header, nodes = msgspec.structs.replace(self.header), dict(self.nodes)
        return RunState(header, nodes, list(self.signals), list(self.held), self.span, self.size)

    @property
    def closed(self) -> bool:
        """Whether the current execution has ended; its terminal state is final."""
        return self.header.status in CLOSED


_SEQ = Header.__struct_fields__.index("seq")
"""``now`` comes right after it."""
_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)
_records_decoder = msgspec.msgpack.Decoder(tuple[int, list[Record]])
_format_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


class UnknownFormat(Exception):
    """A state or record was written by a newer release than this one: do not tick that run (protocol 19)."""


def encode_header(header: Header) -> bytes:
    """MessagePack of a header."""
    return _encoder.encode(header)


def goes_on(before: RunState | None, after: RunState) -> bool:
    """Whether the header of an open run has changed in ``seq`` and ``now`` alone, which its records tell."""
    if before is None or after.closed:
        return False
    old, new = msgspec.structs.astuple(before.header), msgspec.structs.astuple(after.header)
    return old[:_SEQ] == new[:_SEQ] and old[_SEQ + 2 :] == new[_SEQ + 2 :]


def decode_header(raw: bytes) -> Header:
    """Read a header; raises UnknownFormat for a newer format."""
    found = msgspec.msgpack.decode(raw, type=list[msgspec.Raw])
    number = msgspec.msgpack.decode(found[0], type=int)
    if number > FORMAT:
        raise UnknownFormat(f"run state has format {number}, this release reads up to {FORMAT}: deploy it everywhere")
    return _header_decoder.decode(raw)


def format_of(records: Sequence[Record]) -> int:
    """The first format that can say these records."""
    return FORMAT if any(isinstance(record.event, ContinuedInPlace) for record in records) else PLAIN_FORMAT


def encode_records(records: list[Record]) -> bytes:
    """MessagePack of the records of one commit, the format number in front."""
    if (number := format_of(records)) != PLAIN_FORMAT:
        records = [_without_signals(record) for record in records]
    return _encoder.encode((number, records))


def _without_signals(record: Record) -> Record:
    event = record.event
    if not isinstance(event, ContinuedInPlace):
        return record
    return msgspec.structs.replace(record, event=msgspec.structs.replace(event, signals=[]))


def decode_records(raw: bytes) -> list[Record]:
    """Read the records of one commit; raises UnknownFormat for a newer format."""
    number, _ = _format_decoder.decode(raw)
    if number > FORMAT:
        raise UnknownFormat(f"history has format {number}, this release reads up to {FORMAT}: deploy it everywhere")
    return _records_decoder.decode(raw)[1]


def state_bytes(state: RunState) -> bytes:
    """The whole state in one canonical form, to compare two of them."""
    nodes = [state.nodes[k] for k in sorted(state.nodes)]
    return _encoder.encode((state.header, nodes, state.signals, state.held))
