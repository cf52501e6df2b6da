"""The checks that begin with what clients sent and heard."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chaos.history import History, Sent
from ductor_stream.cli.failures import REFUSED, UNREACHABLE
from ductor_stream.engine.events import CommandReceived, RunStarted, SignalReceived
from ductor_stream.engine.state import CLOSED, Record
from ductor_stream.protocol.lifecycle import TYPE_PREFIX, UNNUMBERED

_LOST = "lost_unread"
_GAVE_UP = {f"exit status {code}" for code in (REFUSED, UNREACHABLE)}


def r5_nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    """Each message that the broker acknowledged, and that no fault deleted unread, was applied or has a recorded fate."""
    rejected = {(e["data"]["run_id"], e["data"].get("command_id")) for e in history.lifecycle if "data" in e}
    letters = {letter["key"] for letter in history.letters if letter.get("reason") != _LOST}
    for sent in history.sent.values():
        if not sent.places or all(_is_lost(history, place) for place in sent.places):
            continue
        known = sent.run in history.runs if sent.type == "run.start" else (sent.run, sent.id) in history.applied
        if not known and (sent.run, sent.id) not in rejected and sent.run not in letters:
            yield f"{sent.id} stands at {sent.places[-1]}, and was never applied"


def _is_lost(history: History, place: tuple[int, int, int]) -> bool:
    return any(each.holds(*place) for each in history.lost)


def r5_everything_was_acknowledged(history: History) -> Iterator[str]:
    """What clients had to say, the broker has taken in the end."""
    yield from (f"{sent.id} was sent {sent.tries} times in vain" for sent in history.sent.values() if not sent.places)


def r5b_what_was_lost_unread_is_audited(history: History) -> Iterator[str]:
    """For each range that was deleted unread there is a dead letter that begins with it.

    One will do for two of them, if nobody has noticed the first before the second came; else there must be two, be it
    that both begin with the same number.
    """
    told = Counter(
        (int(letter["source-partition"]), int(letter["source-offset"]))
        for letter in history.letters
        if letter.get("reason") == _LOST and letter["source-topic"].endswith(".run-events")
    )
    noticed: dict[tuple[int, int], set[str]] = defaultdict(set)
    for each in history.lost:
        place = (each.partition, each.read_upto)
        noticed[place].add(each.known_topic)
        if told[place] < len(noticed[place]):
            yield f"offsets {each.start} to {each.upto - 1} of partition {each.partition}: no dead letter"


def r6_each_message_is_applied_once(history: History) -> Iterator[str]:
    """No start, signal or command stands twice in the history of its run."""
    seen: set[tuple[str, str]] = set()
    for commit in history.commits:
        for record in commit.records:
            source = _source(record)
            if source and (commit.run_id, source) in seen:
                yield f"{commit.run_id}: {source} was applied twice"
            if source:
                seen.add((commit.run_id, source))


def _source(record: Record) -> str:
    match record.event:
        case SignalReceived(signal_id=id):
            return f"signal {id}"
        case CommandReceived(command_id=id):
            return f"command {id}"
        case RunStarted(start_id=id):
            return f"start {id}"
    return ""


def r9_clients_hear_one_end(history: History) -> Iterator[str]:
    """Lifecycle events have no gap, the same id is the same event, one execution has one end, and it is Postgres's."""
    events: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    ends: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in history.lifecycle:
        if str(line.get("type")).removeprefix(TYPE_PREFIX) in UNNUMBERED:
            continue
        data = line["data"]
        if events[data["run_id"]].setdefault(data["seq"], data) != data:
            yield f"{data['run_id']}: two events have the number {data['seq']}"
        if data.get("status") in CLOSED:
            ends[data["run_id"], data["execution"]].add(line["id"])
    yield from (f"{run}: execution {n} has {len(ids)} ends" for (run, n), ids in ends.items() if len(ids) > 1)
    for run_id, run in history.runs.items():
        heard = events[run_id]
        told = [heard[seq].get("status") for seq in sorted(heard) if "status" in heard[seq]]
        if sorted(heard) != list(range(1, len(heard) + 1)) or not told:
            yield f"{run_id}: its events have a gap: {sorted(heard)}"
        elif told[-1] != run.status:
            yield f"{run_id} is {run.status}, but clients heard that it is {told[-1]}"


def r11_nobody_else_suffers(history: History) -> Iterator[str]:
    """No message of an honest client becomes a dead letter, no process falls over by itself, or neither starts nor ends.

    One that finds its servers away, or its topics half raised, may say so and end: whoever supervises it tries again.
    """
    for letter in history.letters:
        if letter.get("reason") != _LOST:
            yield f"{letter['key']}: dead letter, {letter.get('reason')}: {letter.get('error')}"
    for each in history.fallen:
        if each["ending"] not in _GAVE_UP:
            yield f"{each['place']} ended by itself, {each['ending']}: {each['told'][-300:]}"
    for line in history.lines:
        if line["what"] == "ended" and line["status"] == -signal.SIGKILL:
            yield f"{line['place']} did not end in good order within {line['seconds']:.0f} s"
        elif line["what"] == "silent":
            yield f"{', '.join(line['places'])} did not start in time: no answer on the health port"


def r12_order_of_a_source_is_kept(history: History) -> Iterator[str]:
    """Signals of a run that came by one partition are applied in their order there, whichever partition it was.

    One that was sent several times may stand in several places: nothing can be said of its order.
    """
    last: dict[tuple[str, int, int], tuple[int, Sent]] = {}
    for commit in history.commits:
        for record in commit.records:
            if not isinstance(record.event, SignalReceived):
                continue
            sent = history.sent.get(record.event.signal_id)
            if sent is None or sent.tries > 1 or not sent.places:
                continue
            incarnation, partition, offset = sent.places[-1]
            key = (commit.run_id, incarnation, partition)
            if key in last and last[key][0] >= offset:
                yield f"{commit.run_id}: {sent.id} was applied after {last[key][1].id}, and stands before it"
            last[key] = (offset, sent)


CLIENT_CHECKS: Mapping[str, Callable[[History], Iterator[str]]] = {
    "R5 nothing acknowledged is lost": r5_nothing_acknowledged_is_lost,
    "R5 everything was acknowledged": r5_everything_was_acknowledged,
    "R5b what was lost unread is audited": r5b_what_was_lost_unread_is_audited,
    "R6 each message is applied once": r6_each_message_is_applied_once,
    "R9 clients hear one end": r9_clients_hear_one_end,
    "R11 nobody else suffers": r11_nobody_else_suffers,
    "R12 order of a source is kept": r12_order_of_a_source_is_kept,
}
