"""Settings that only whole processes show: the topics' prefix, and the form of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from fleet import fleet_of
from rig import Rig
from support import until

from ductor_stream import SyncClient
from ductor_stream.config import load
from ductor_stream.kafka.topics import AdminConfig, delete_topics, plan
from ductor_stream.protocol.topics import Topics

PREFIX = "acme.eu-1_"


@pytest.fixture
def prefixed(rig: Rig) -> Iterator[Topics]:
    """The namespace's topics under the prefix; whoever creates them, they are deleted."""
    topics = Topics(rig.namespace, PREFIX)
    yield topics
    config = AdminConfig(bootstrap=rig.bootstrap, topics=topics)
    delete_topics(config, [each.name for each in plan(topics, ["default"])])


def is_line_of_json(line: str) -> bool:
    """An object with what each line of a log has."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and {"event", "level", "logger", "time"} <= found.keys()


@pytest.mark.parametrize("form", ["json", "console"])
def test_runs_complete_under_another_prefix_and_logs_have_their_form(rig: Rig, prefixed: Topics, form: str) -> None:
    """DUCTOR_TOPIC_PREFIX and DUCTOR_LOG_FORMAT, heard by commands, coordinator, worker and client alike."""
    with fleet_of(rig) as fleet:
        environment = fleet.settings
        environment |= {"DUCTOR_TOPIC_PREFIX": PREFIX, "DUCTOR_LOG_FORMAT": form}
        fleet.say("topics", "create", "shop:app", "--partitions", str(rig.partitions))
        admin = AdminClient({"bootstrap.servers": rig.bootstrap})
        wanted = {each.name for each in plan(prefixed, ["default"])}
        assert all(name.startswith(f"{PREFIX}{rig.namespace}.") for name in wanted)
        until(lambda: wanted <= admin.list_topics(timeout=10).topics.keys(), what="topics with the prefix")
        assert fleet.say("topics", "check", "shop:app")
        members = [fleet.start("coordinator"), fleet.start("worker")]
        fleet.until_ready()
        fleet.say("start", "chain", "done", "--input", "3")
        with SyncClient.from_settings(rig.namespace, load(environment, kafka_bootstrap=rig.bootstrap)) as client:
            assert client.start("chain", 3, run_id="heard").result(timeout=60) == [0, 1, 2]
        rig.until_status("completed", "done", "heard")
        groups = {each.group_id for each in admin.list_consumer_groups().result(10).valid}
        assert {prefixed.coordinator_group, prefixed.worker_group("default")} <= groups
        for member in members:
            member.terminate()
        for member in members:
            member.until_ended()

        used = {topic: len(rig.read(topic)) for topic in (prefixed.run_events, prefixed.tasks("default"))}
        assert used == {prefixed.run_events: 2, prefixed.tasks("default"): 6}
        assert [each.name for each in rig.plans if rig.read(each.name)] == [], "the default prefix's topics lie idle"
        lines = [line for member in members for line in member.log.splitlines()]
        assert len(lines) >= 4
        if form == "json":
            assert [line for line in lines if not is_line_of_json(line)] == []
        else:
            assert [line for line in lines if is_line_of_json(line)] == []
        rig.check()
