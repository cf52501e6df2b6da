"""``dead-letters replay``: what becomes of each letter is told, however many cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime

import msgspec
import pytest

from ductor_stream.cli.letters import Letter
from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.ports import Outgoing

Call = Callable[..., tuple[int, str, str]]
REPLAY = ("dead-letters", "replay", "--all", "--namespace", "shop", "--kafka", "127.0.0.1:1")
LETTER = Letter(
    id="0:0",
    at=datetime(2026, 1, 1, tzinfo=UTC),
    reason="undecodable",
    error="no JSON",
    source_topic="ductor.shop.run-events",
    source="0:7",
    key=b"order-1",
    value=b"{",
    reference=None,
    headers=[],
)
DENIED = TopicsNotReady("Kafka does not let us write to ductor.shop.tasks.mail")
AWAY = LogUnavailable("the broker did not acknowledge the request")


class Answer(Future[None]):
    """What the driver says of a record, after its own time: whoever waits with a bound of theirs has given up by then."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def result(self, timeout: float | None = None) -> None:
        if timeout is not None:
            raise TimeoutError
        if self._error is not None:
            raise self._error


class Log:
    """Answers each record as it was told, in order."""

    def __init__(self, answers: list[Exception | None]) -> None:
        self._answers: Iterator[Exception | None] = iter(answers)
        self.sent: list[Outgoing] = []

    def send(self, record: Outgoing) -> Future[None]:
        self.sent.append(record)
        return Answer(next(self._answers))

    def close(self, timeout: float) -> None:
        """Nothing is open."""


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these letters and the broker's answers."""

    def make(answers: list[Exception | None], *letters: Letter) -> None:
        monkeypatch.setattr("ductor_stream.cli.dead_letters.read_letters", lambda *_: letters)
        monkeypatch.setattr("ductor_stream.cli.dead_letters.open_log", lambda *_, **__: Log(answers))

    return make


def letter(number: int, key: bytes | None = b"order-1") -> Letter:
    return msgspec.structs.replace(LETTER, id=f"0:{number}", key=key)


def test_letters_that_cannot_be_sent_do_not_hide_those_that_were(letters: Callable[..., None], call: Call) -> None:
    answers = [None, DENIED, None]
    letters(answers, letter(0), letter(1), letter(2, key=None), letter(3))
    code, out, err = call(*REPLAY)
    assert out.splitlines() == [
        "sent 2 again",
        "skipped: letter 0:2 came without a key: no run can be told from it",
        f"not sent: letter 0:1: {DENIED}",
    ]
    assert (code, str(DENIED) in err, "Traceback" in err) == (4, True, False)
    letters(answers, letter(0), letter(1), letter(2, key=None), letter(3))
    code, out, err = call(*REPLAY, "--json")
    found = json.loads(out)
    assert (code, found["sent"]) == (4, ["0:0", "0:3"])
    assert found["failed"] == [{"id": "0:1", "error": str(DENIED)}]
    assert [each["id"] for each in found["skipped"]] == ["0:2"]
    assert json.loads(err)["error"]["code"] == "topics_not_ready"


def test_a_broker_that_is_slow_is_waited_for_as_long_as_the_driver_does(
    letters: Callable[..., None], call: Call
) -> None:
    letters([None, DENIED, AWAY], letter(0), letter(1), letter(2))
    code, out, err = call(*REPLAY)
    assert out.splitlines()[0] == "sent 1 again"
    assert (code, str(AWAY) in err) == (5, True), "trying again may help one of them"


def test_all_that_are_sent_end_well(letters: Callable[..., None], call: Call) -> None:
    letters([None], letter(0))
    assert call(*REPLAY) == (0, "sent 1 again\n", "")
