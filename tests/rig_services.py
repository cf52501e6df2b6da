"""Coordinators of a rig: in a thread of the test's process, or as a process of their own that can be killed.

And what they set aside, dead letters, and tell, lifecycle events.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from support import until

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.telemetry.metrics import Metrics

CHILD = Path(__file__).with_name("coordinator_child.py")
FAST = CoordinatorConfig(
    sweep_s=0.5,
    conflict_backoff_ms=2,
    conflict_delay_ms=20,
    deliver_again_ms=300,
    confirm_idle_s=0.05,
    drain_s=3.0,
    idle_poll_s=0.1,
)
"""As in production, but what is done every few seconds is done twice a second."""


class Running:
    """A coordinator in a thread of this process. ``stop`` ends it in good order and raises what it failed with."""

    def __init__(self, coordinator: Coordinator, metrics: Metrics) -> None:
        self.coordinator = coordinator
        self.metrics = metrics
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.coordinator.run()
        except BaseException as error:  # noqa: BLE001 - raised by stop, in the test's thread
            self._error = error

    @property
    def alive(self) -> bool:
        """Whether its loop still goes round."""
        return self._thread.is_alive()

    @property
    def owned(self) -> set[int]:
        """The partitions that it owns."""
        return set(self.coordinator.ownership.owned)

    def reasons(self) -> list[str]:
        """Why it is not ready."""
        return self.coordinator.readiness.reasons()

    def count(self, name: str, **labels: str) -> float:
        """What a counter (``ductor_redrives``) says."""
        labels = {"app": self.metrics.app, **labels}
        return self.metrics.registry.get_sample_value(f"{name}_total", labels) or 0.0

    def stop(self) -> None:
        """End it, and wait for that."""
        self.coordinator.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the coordinator does not end"
        if self._error is not None:
            raise self._error


class Child:
    """A coordinator as a process of its own (see coordinator_child.py), to be killed or frozen."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=output, stderr=output)

    def said(self, text: str) -> bool:
        """Whether its output has this by now."""
        return text in self.log.read_text("utf-8", "replace")

    def until_said(self, text: str, within_ms: float = 30_000) -> None:
        """Wait for a line; fails with the child's output if it ends before."""

        def look() -> bool:
            ended = self.process.poll() is not None
            if ended and not self.said(text):
                raise RuntimeError(f"the child ended: {self.log.read_text()[-3000:]}")
            return self.said(text)

        until(look, within_ms=within_ms, what=f"{text!r} said by the child")

    def wait_dead(self) -> None:
        """Wait until it is dead by SIGKILL."""
        assert self.process.wait(60) == -9, self.log.read_text()[-3000:]

    def kill(self) -> None:
        """SIGKILL, if it still lives."""
        self.process.kill()
        self.process.wait(30)


class Letter:
    """A dead letter: ``key``, ``value``, and its headers by name as text."""

    def __init__(self, message: Message) -> None:
        self.key, self.value = message.key(), message.value()
        headers: Any = message.headers() or []
        self.headers = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
        self.reason = self.headers["ductor-reason"]


class Told:
    """A lifecycle event: ``id`` and ``type`` (without "ductor."), the ``run_id`` that is its key, and its ``data``."""

    def __init__(self, message: Message) -> None:
        headers = {name: value.decode() for name, value in message.headers() or []}
        self.id, self.type = headers["ce_id"], headers["ce_type"].removeprefix("ductor.")
        self.run_id = (message.key() or b"").decode()
        self.data: dict[str, Any] = json.loads(message.value() or b"")
