"""The inbound topics are raised one after the other under running coordinators (protocol 7).

In between no member may hold a partition in all three: nobody decides for its runs, and each says so.
"""

from __future__ import annotations

from typing import Literal

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from rig import Rig, Running
from support import until


def raise_to_four(rig: Rig, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    for future in admin.create_partitions([NewPartitions(name, 4) for name in names]).values():
        future.result(10)
    rig.renew_clients()


def misfits(running: Running) -> float | None:
    return running.metrics.registry.get_sample_value("ductor_inbound_misfits", {"app": ""})


@pytest.mark.parametrize("protocol", ["auto", "classic"])
def test_unequal_topics_are_told_by_every_member_and_heal(rig: Rig, protocol: Literal["auto", "classic"]) -> None:
    one = rig.coordinator(protocol=protocol)
    two = rig.coordinator(protocol=protocol, ready=False)
    both = (one, two)
    until(lambda: (len(one.owned), len(two.owned)) == (1, 1), within_ms=20_000, what="a partition each")
    rig.worker()
    waits = [f"w{n}" for n in range(6)]
    rig.start(*waits, workflow="words", input=1)
    rig.until_status("running", *waits)

    raise_to_four(rig, rig.topics.run_events)
    for name in (rig.topics.attempt_results, rig.topics.wakeups):
        mend = f"kafka-topics.sh --alter --topic {name} --partitions 4"
        for each in both:
            until(lambda each=each, mend=mend: any(mend in why for why in each.reasons()), within_ms=20_000, what=mend)
    assert [misfits(each) for each in both] == [2, 2]
    fresh = [f"r{n}" for n in range(8)]
    for number, run_id in enumerate(fresh):
        rig.start(run_id, partition=number % 4)
        rig.signal(waits[number % 6], f"x{number}", partition=number % 4)

    raise_to_four(rig, rig.topics.attempt_results)
    until(lambda: [misfits(each) for each in both] == [1, 1], within_ms=20_000, what="one topic to raise")
    raise_to_four(rig, rig.topics.wakeups)
    until(lambda: [each.reasons() for each in both] == [[], []], within_ms=30_000, what="all green again")
    until(lambda: one.owned | two.owned == {0, 1, 2, 3}, within_ms=30_000, what="an owner for each partition")
    rig.until_status("completed", *waits, *fresh)
    rig.check()
    assert [misfits(each) for each in both] == [0, 0]
