"""Setting configuration of topics as an operator does."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

NOBODYS_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}
"""No host's clock fits: as with the time of producers and a host whose clock is an hour ahead."""
APPENDED = {"message.timestamp.type": "LogAppendTime"}


def configure(bootstrap: str, topic: str, config: dict[str, str]) -> None:
    """Set this of the topic."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)
