"""Lines of a page in a shell, with everything at hand that they call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.commands import Folder, clean_environment

KCAT = "kcat" if shutil.which("kcat") else "kcat is not here, its lines by confluent-kafka"

STAND_IN = f"""#!{sys.executable}
import sys
from confluent_kafka import Producer

words = sys.argv[1:]
assert words[0] == "-P", words
broker, topic = words[words.index("-b") + 1], words[words.index("-t") + 1]
assert words[-1] == "-K:", words
producer = Producer({{"bootstrap.servers": broker, "enable.idempotence": True}})
for line in sys.stdin.read().splitlines():
    key, _, value = line.partition(":")
    producer.produce(topic, value, key)
assert producer.flush(30) == 0
"""
"""As much of kcat as the pages need."""


class Shell:
    """A terminal in that folder."""

    def __init__(self, folder: Folder) -> None:
        programs = folder.path / "bin"
        programs.mkdir()
        if KCAT != "kcat":
            (programs / "kcat").write_text(STAND_IN, "utf-8")
            (programs / "kcat").chmod(0o755)
        self._path = folder.path
        self.environment = clean_environment()
        self.environment.pop("BROKER", None)
        places = [str(programs), str(Path(sys.executable).parent), self.environment["PATH"]]
        self.environment["PATH"] = os.pathsep.join(places)

    def __call__(self, text: str) -> str:
        """Type that in; it must succeed. Gives what is printed."""
        done = subprocess.run(
            ["sh", "-euc", text], cwd=self._path, env=self.environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}: {done.stderr}"
        return done.stdout
