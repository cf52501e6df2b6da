"""One run uses the whole fleet: its parallel steps are spread over all workers of their queue."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fleet import fleet_of
from rig import opened

from ductor_stream.kafka.topics import DEFAULT_PARTITIONS

if TYPE_CHECKING:
    from servers import KafkaServer

STEPS = 1_000
WORKERS = 4
LEAST, MOST = 0.15, 0.35


def test_a_thousand_parallel_steps_of_one_run_are_shared_by_four_workers(
    kafka: KafkaServer, runs_database: str, tmp_path: Path
) -> None:
    """Tasks are partitioned by run and node, so that each of four workers gets 15 to 35 % of one run's steps."""
    with (
        opened(kafka.bootstrap, runs_database, tmp_path, partitions=DEFAULT_PARTITIONS) as rig,
        fleet_of(rig) as fleet,
    ):
        fleet.start("coordinator")
        for _ in range(WORKERS):
            fleet.start("worker")
        fleet.until_ready()
        fleet.until_shared("default")
        rig.start("fan", workflow="fan", input=STEPS)
        rig.until_status("completed", "fan", within_ms=60_000)
        assert rig.run("fan")["result"] == STEPS
        shares = Counter(each["pid"] for each in fleet.effects())
        assert sum(shares.values()) == len(fleet.effect_counts()) == STEPS
        assert len(shares) == WORKERS
        assert all(LEAST * STEPS <= share <= MOST * STEPS for share in shares.values()), shares
        rig.check()
