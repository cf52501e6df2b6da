"""Kafka and Postgres go away and come back: nothing is lost, all goes on by itself, and readiness said so (R5, R9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from rig import Rig, Running, opened
from servers import fresh_database
from support import until

from ductor_stream.store.migrate import migrate

if TYPE_CHECKING:
    from servers import KafkaServer

    from ductor_stream.coordinator.service import Coordinator
    from ductor_stream.dev.kafka import EmbeddedKafka
    from ductor_stream.dev.postgres import EmbeddedPostgres


@pytest.fixture
def on_own_kafka(own_kafka: EmbeddedKafka, runs_database: str, tmp_path: Path) -> Iterator[Rig]:
    """A rig whose Kafka may be killed."""
    with opened(own_kafka.bootstrap, runs_database, tmp_path) as rig:
        yield rig


@pytest.fixture
def on_own_postgres(kafka: KafkaServer, own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Rig]:
    """A rig whose Postgres may be killed."""
    migrate(own_postgres.url)
    with opened(kafka.bootstrap, own_postgres.url, tmp_path) as rig:
        yield rig


def under_way(rig: Rig) -> tuple[Running, list[str]]:
    """A coordinator with runs that sleep and runs that wait for a signal."""
    rig.worker()
    running = rig.coordinator()
    naps, waits = [f"n{n}" for n in range(5)], [f"w{n}" for n in range(5)]
    rig.start(*naps, workflow="nap", input=1_000)
    rig.start(*waits, workflow="order", input=2)
    rig.until_status("running", *naps, *waits)
    return running, [*naps, *waits]


def said(running: Running, *words: str) -> None:
    """Wait until readiness gives one of these as a reason.

    That it is within ten seconds no test may measure on a shared machine (``until`` has patience): the bounds that add up
    to less are in ``unit/test_readiness.py``.
    """
    until(
        lambda: any(w in why for why in running.reasons() for w in words), within_ms=15_000, what=f"not ready: {words}"
    )


def all_well(rig: Rig, running: Running, ids: list[str]) -> None:
    """What was under way ends, what comes anew is served, and the rules hold."""
    for run_id in ids:
        rig.signal(run_id, "go", signal_id="go")
    rig.start("later")
    rig.until_status("completed", "later", *(run_id for run_id in ids if run_id != "later"), within_ms=60_000)
    until(lambda: running.reasons() == [], within_ms=15_000, what="ready again")
    rig.check()
    assert rig.run(ids[-1])["result"] == [0, 2, "go", 0, 2]
    assert rig.letters() == []


def test_kafka_is_killed_and_comes_back(on_own_kafka: Rig, own_kafka: EmbeddedKafka) -> None:
    """R5: timers fire meanwhile, and what they decide waits in the outbox."""
    running, ids = under_way(on_own_kafka)
    own_kafka.kill()
    said(running, "Kafka cannot be reached")
    fired = "select run_id from eec_workflow_step_attempt where ns = {ns} and phase = 'dispatched' and starts_with(run_id, 'n')"
    until(lambda: len(on_own_kafka.rows(fired)) == 5, within_ms=20_000, what="timers fired without Kafka")
    own_kafka.restart()
    all_well(on_own_kafka, running, ids)


def test_postgres_is_killed_and_comes_back(on_own_postgres: Rig, own_postgres: EmbeddedPostgres) -> None:
    """R5, protocol 3: input waits in Kafka; the partitions are taken anew."""
    running, ids = under_way(on_own_postgres)
    own_postgres.kill()
    said(running, "Postgres cannot be reached")
    for run_id in ids:
        on_own_postgres.signal(run_id, "go", signal_id="go")
    own_postgres.restart()
    all_well(on_own_postgres, running, ids)


def test_both_are_gone_at_once(own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """R9: no order of failing and coming back ends the process."""
    migrate(own_postgres.url)
    with opened(own_kafka.bootstrap, own_postgres.url, tmp_path) as rig:
        running, ids = under_way(rig)
        own_postgres.kill()
        own_kafka.kill()
        until(lambda: running.count("ductor_outages", of="kafka") >= 1, within_ms=20_000, what="Kafka missed")
        said(running, "Postgres cannot be reached")
        own_postgres.restart()
        until(
            lambda: not any("Postgres" in why for why in running.reasons()), within_ms=20_000, what="Postgres noticed"
        )
        own_kafka.restart()
        all_well(rig, running, ids)


@pytest.mark.moves("ductor_outages")
def test_the_connection_is_cut_in_mid_transaction(rig: Rig) -> None:
    """Protocol 3, 6: the session is ended while its commit waits for a row."""
    told: list[list[str]] = []

    def note(coordinator: Coordinator) -> None:
        """What readiness says while it is connected anew: too short a while here for anybody who looks now and then."""
        reconnect = coordinator.ownership.reconnect

        def noted() -> None:
            told.append(coordinator.readiness.reasons())
            reconnect()

        cast(Any, coordinator.ownership).reconnect = noted

    worker = rig.worker()
    running = rig.coordinator(prepare=note)
    rig.start("r", workflow="order", input=2)
    until(lambda: len(worker.effects) == 2, what="two steps done")
    with psycopg.connect(rig.database) as other:
        other.execute("select from eec_workflow_run where run_id = 'r' for update")
        rig.signal("r", "go", signal_id="go")
        cut = (
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and starts_with(application_name, 'ductor-stream owner')"
        )
        until(lambda: rig.rows(cut), what="a commit that waits, cut")
        other.rollback()
    rig.until_status("completed", "r")
    rig.check()
    assert rig.run("r")["result"] == [0, 2, "go", 0, 2]
    assert running.count("ductor_outages", of="postgres") >= 1
    assert told
    assert all(any("Postgres cannot be reached" in why for why in reasons) for reasons in told)
    assert running.reasons() == []


def test_an_idle_coordinator_notices_that_postgres_is_gone(
    kafka: KafkaServer, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """R9: also one that owns nothing, and it is green again without having been given anything."""
    with fresh_database(own_postgres.url) as url:
        migrate(url)
        with opened(kafka.bootstrap, url, tmp_path, partitions=1) as rig:
            busy = rig.coordinator()
            idle = rig.coordinator(ready=False)
            until(lambda: len(busy.owned | idle.owned) == 1 and not idle.reasons(), what="one owner, both ready")
            own_postgres.kill()
            for each in (busy, idle):
                said(each, "Postgres cannot be reached")
            own_postgres.restart()
            for each in (busy, idle):
                until(lambda each=each: each.reasons() == [], within_ms=15_000, what="ready again")
            busy.stop()
            idle.stop()
