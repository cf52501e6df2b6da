"""Records that were deleted before they were read are audited with their offsets, and reading goes on (protocol 9)."""

from __future__ import annotations

from typing import Literal

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from rig import Rig
from support import until

from ductor_stream.kafka import inbound


def cut(rig: Rig, topic: str, partition: int, before: int) -> None:
    """As retention does: delete the records of a partition before an offset."""
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(10)


def same_home(rig: Rig, count: int) -> list[str]:
    """Run ids of partition 0."""
    return [run_id for run_id in (f"r{n}" for n in range(100)) if rig.home(run_id) == 0][:count]


def offsets(rig: Rig) -> list[int]:
    """How far partition 0 was read, by Postgres."""
    row = rig.rows("select offsets from eec_partition where ns = {ns} and partition = 0")[0]
    found: list[int] = row["offsets"]
    return found


@pytest.mark.moves("ductor_records_lost")
def test_a_lost_range_is_a_dead_letter_with_its_offsets(rig: Rig) -> None:
    """Protocol 9, R5b: no silent jump; what is left behind the gap is applied."""
    first, *rest = same_home(rig, 6)
    running = rig.coordinator()
    rig.worker()
    rig.start(first)
    rig.until_status("completed", first)
    running.stop()
    rig.start(*rest)
    cut(rig, rig.topics.run_events, 0, 4)

    running = rig.coordinator()
    rig.until_status("completed", *rest[3:])
    rig.check()
    (letter,) = rig.letters()
    assert letter.reason == "lost_unread"
    assert letter.headers["ductor-source-topic"] == rig.topics.run_events
    assert letter.headers["ductor-source-partition"] == "0"
    assert letter.headers["ductor-source-offset"] == "1"
    assert "offsets 1 to 3" in letter.headers["ductor-error"]
    assert running.count("ductor_records_lost") == 3
    assert rig.run(rest[0]) == {}


def test_a_gap_with_nothing_behind_it_is_told_once(rig: Rig) -> None:
    """Protocol 9: the audit moves the committed offset, so that the next owner does not find the same gap again."""
    (only,) = same_home(rig, 1)
    rig.coordinator().stop()
    rig.start(only)
    with_offset = rig.coordinator()
    until(lambda: offsets(rig)[0] == 1, what="the start applied")
    with_offset.stop()
    rig.start(only)
    cut(rig, rig.topics.run_events, 0, 2)

    running = rig.coordinator()
    until(lambda: offsets(rig)[0] == 2, what="the gap recorded")
    running.stop()
    rig.coordinator()
    rig.check()
    assert [letter.reason for letter in rig.letters()] == ["lost_unread"]


@pytest.mark.parametrize("protocol", ["auto", "classic"])
def test_a_refused_seek_is_not_the_end_of_reading(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, protocol: Literal["auto", "classic"]
) -> None:
    """R9: the client may refuse a seek while it starts on a partition, which is then assigned anew, and read."""
    monkeypatch.setattr(inbound, "SEEK_TRIES", 0)
    ids = [f"r{n}" for n in range(8)]
    rig.worker()
    for part in (ids[:4], ids[4:]):
        running = rig.coordinator(protocol=protocol)
        rig.start(*part)
        rig.until_status("completed", *part)
        running.stop()
