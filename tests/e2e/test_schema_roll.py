"""From this release's schema to the next one's, under load: migrations before, the processes one by one, migrations after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.load import STEPS, Load, doubled
from e2e.test_rolling import roll
from fleet import fleet_of
from rig import Rig, opened
from servers import fresh_database
from support import until

from ductor_stream.store import migrate as migrating
from ductor_stream.store.migrate import Migration, migrate, migrations

if TYPE_CHECKING:
    from servers import KafkaServer, PostgresServer

BEFORE = b"""
alter table eec_workflow_run add column priority smallint;
alter table eec_workflow_transition add column note text;
create table eec_later (ns smallint not null, name text not null, primary key (ns, name));
"""
AFTER = b"""
update eec_workflow_run set priority = 0 where priority is null;
select pg_sleep(0.5); -- owners wait for these rows now, with the table in hand that the next line wants: deadlocks
alter table eec_workflow_run alter column priority set default 0;
create index eec_workflow_run_priority on eec_workflow_run (ns, priority) where closed_at is null;
"""


@pytest.fixture
def rig(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Rig]:
    """A namespace in a database of its own: what is done to its schema is nobody else's affair."""
    with fresh_database(postgres.url) as url:
        migrate(url)
        with opened(kafka.bootstrap, url, tmp_path, partitions=4) as made:
            yield made


def test_a_rolling_deploy_to_the_next_schema_loses_and_parks_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (Migration(9001, "pre", "priority", BEFORE), Migration(9002, "post", "priority", AFTER))
    known = (*migrations(), *later)
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    with fleet_of(rig) as fleet:
        for _ in range(2):
            fleet.start("coordinator")
            fleet.start("worker")
        fleet.until_ready()
        load = Load(rig)
        with load.flowing():
            until(lambda: len(load.ids) > 20, what="load")
            assert migrate(rig.database, "pre") == ["9001_pre_priority"]
            for member in list(fleet.members):
                roll(fleet, member)  # this release starts on the next one's tables
            sent = len(load.ids)
            assert migrate(rig.database, "post") == ["9002_post_priority"]
            until(lambda: len(load.ids) > sent + 50, what="load after it")
        rig.until_status("completed", *load.ids, within_ms=60_000)
        assert rig.rows("select run_id from eec_workflow_run where ns = {ns} and reason <> ''") == []
        assert fleet.total("ductor_runs_suspended_total") == 0
        outages = {of: fleet.total("ductor_outages_total", of=of) for of in ("kafka", "postgres")}
        assert outages == {"kafka": 0, "postgres": 0}
        assert doubled(fleet) == {}
        assert len(fleet.effect_counts()) == STEPS * len(load.ids)
        rig.check()
        assert rig.letters() == []
