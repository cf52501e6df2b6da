"""Apache Kafka's own ``kafka-acls.sh``, which needs one jar more than the broker: ``python tests/kafka_tools.py`` fetches it."""

from __future__ import annotations

import shlex
from pathlib import Path

from ductor_stream.dev.jars import KAFKA_VERSION, Jar, ensure_jars
from ductor_stream.dev.jvm import class_path, java

TOOLS = Jar(
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}", "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
)


def jars() -> list[Path]:
    """What the command runs from."""
    return [*ensure_jars(), *ensure_jars(jars=[TOOLS])]


def kafka_acls(folder: Path) -> None:
    """Put it there under the name by which people call it."""
    words = [str(java()), "-XX:TieredStopAtLevel=1", "-cp", class_path(jars()), "org.apache.kafka.tools.AclCommand"]
    script = folder / "kafka-acls.sh"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', "utf-8")
    script.chmod(0o755)


if __name__ == "__main__":
    jars()
