"""docs/wire.md is the contract: its examples are read by the code, its tables are those of the code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pages import ROOT, blocks, fenced
from wire_cases import TOPICS

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.ports import INBOUND, Received
from ductor_stream.protocol import avro, limits
from ductor_stream.protocol.inbound import ForRun, InboundDecoder
from ductor_stream.protocol.lifecycle import decode_lifecycle
from ductor_stream.protocol.vocabulary import ERROR_CODES, OWNER_REASONS, REASONS, TOPIC_OF_TYPE
from ductor_stream.protocol.worker import decode_stop, decode_task

PAGE = (ROOT / "docs" / "wire.md").read_text("utf-8")


def examples() -> list[tuple[str, bytes]]:
    """Each JSON object of the page with the topic that stands after ``json``."""
    found = []
    for info, text, _ in fenced("docs/wire.md"):
        if info.startswith("json "):
            position = 0
            while text[position:].strip():
                end = json.JSONDecoder().raw_decode(text[position:].lstrip())[1]
                start = len(text) - len(text[position:].lstrip())
                found.append((info.removeprefix("json "), text[start : start + end].encode()))
                position = start + end
    return found


EXAMPLES = examples()


def read(topic: str, value: bytes) -> Any:
    if topic == "tasks":
        return decode_task(b"order-42", value, [])
    if topic == "attempt-control":
        return decode_stop(b"order-42", value, [])
    if topic == "run-lifecycle":
        return decode_lifecycle(b"order-42", value, [("ce_type", b"ductor.run.completed")])
    assert topic in INBOUND
    received = Received(topic, 0, 0, b"order-42", value, [("ductor-wire", b"1")])  # type: ignore[arg-type]
    message = InboundDecoder(TOPICS).decode(received, "tid")
    return message.event if isinstance(message, ForRun) else message


@pytest.mark.parametrize(("topic", "value"), EXAMPLES)
def test_every_example_is_read(topic: str, value: bytes) -> None:
    assert read(topic, value) is not None


def test_there_is_an_example_of_every_message_that_others_write_or_read() -> None:
    assert {json.loads(value).get("type") for _, value in EXAMPLES} >= set(TOPIC_OF_TYPE) - {"wakeup"}


def test_the_full_start_means_what_the_page_says() -> None:
    start = next(value for _, value in EXAMPLES if b'"on_conflict"' in value)
    found = read("run-events", start)
    assert (found.workflow, found.version, found.start_id) == ("fulfil", "1", "s1-0b9a")
    assert (found.on_conflict, found.run_timeout_ms) == ("restart_if_failed", 86_400_000)


def table(start: str) -> dict[str, str]:
    """The rows of the table whose head begins so: first cell to second cell."""
    rows = PAGE[PAGE.index(start) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[0].strip("`"): row[1] for row in cells}


def test_the_reasons_of_dead_letters_are_those_of_the_code() -> None:
    assert table("| `ductor-reason` | means |") == REASONS
    assert table("| `ductor-reason` of an owner | means |") == OWNER_REASONS
    assert not REASONS.keys() & OWNER_REASONS.keys()


def test_every_word_that_a_coordinator_sets_aside_with_is_explained() -> None:
    sources = [path.read_text() for path in (ROOT / "ductor_stream" / "coordinator").rglob("*.py")]
    words = {word for source in sources for word in re.findall(r'DataError\("(\w+)"|dead_letters\["(\w+)"\]', source)}
    assert {one or other for one, other in words} | {"poisoned_run"} == OWNER_REASONS.keys()


def test_the_topics_of_types_are_those_of_the_code() -> None:
    for type, topic in TOPIC_OF_TYPE.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `ductor.<ns>.{topic}`"))
        assert f"`{type}`" in row


def test_the_error_codes_are_those_of_the_code() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `code` |"))
    assert set(re.findall(r"`(\w+)`", row)) == ERROR_CODES | {"code"}


def test_what_waits_for_its_run_waits_as_long_as_the_pages_say() -> None:
    hours = CoordinatorConfig().buffered_ttl_ms / 3_600_000
    (kept,) = re.findall(
        r"was not started while it was kept \((\d+) h\)", table("| `ductor-reason` of an owner")["expired"]
    )
    guide = (ROOT / "docs" / "guides" / "signals.md").read_text("utf-8")
    (waits,) = re.findall(r"waits for it \((\d+) hours by default\)", guide)
    assert int(kept) == int(waits) == hours


def test_the_limits_are_those_of_the_code() -> None:
    stated = set(re.findall(r"\d[\d,]*\d", PAGE[PAGE.index("## Limits") : PAGE.index("## Avro")]))
    numbers = [
        limits.MAX_PAYLOAD_BYTES,
        limits.MAX_RECORD_BYTES,
        limits.MAX_DETAILS_BYTES,
        limits.MAX_RUN_ID_BYTES,
        limits.MAX_ID_BYTES,
        limits.MAX_NUMBER,
        limits.MAX_DURATION_MS,
        limits.MAX_NESTING,
        limits.MAX_TASK_NESTING,
        limits.MAX_CONTEXT_HEADERS,
        limits.MAX_CONTEXT_BYTES,
        CoordinatorConfig().buffered_limit,
        CoordinatorConfig().signals_limit,
        CoordinatorConfig().signals_bytes,
    ]
    assert stated == {f"{number:,}" for number in numbers}
    for number in (limits.MAX_MESSAGE, limits.MAX_STACK, limits.MAX_REASON, limits.MAX_WORKER):
        assert f"{number:,} characters" in PAGE


def test_the_fingerprints_are_those_of_the_schemas() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| \[`(.+)`\]\(\.\./schemas/(.+)\) \| `([\w.]+)` \| `([0-9a-f]{16})` \|$", PAGE, re.MULTILINE
    )
    forms = list(avro.catalog())
    assert rows == [(f.type, f"{f.type}.avsc", f"{f.type}.avsc", f.name, f.header[2:].hex()) for f in forms]
    assert all((ROOT / "schemas" / f"{form.type}.avsc").is_file() for form in forms)


def test_the_plain_worker_on_the_page_is_the_one_that_is_run() -> None:
    source = (ROOT / "examples" / "plain_worker.py").read_text("utf-8")
    assert source in blocks("docs/wire.md", "python")
    assert "ductor_stream" not in source
    assert sum(1 for line in source.splitlines() if line.strip()) <= 40, (
        "a worker needs no library of ours, and forty lines at most"
    )
    compile(source, "plain_worker.py", "exec")
