"""Containers as a chart or a compose file describes them, run as plain processes on this machine.

Command, arguments and environment are those of the container. Replaced is only what a machine without a cluster cannot
give: the port (two containers would share it), the address (127.0.0.1 instead of all), names of hosts, and the place
where secrets are mounted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploy.tooling import ROOT
from support import free_port

from ductor_stream.dev.process import ServerProcess, ServerSpec, launch, log_tail

BIN = Path(sys.executable).parent
END_WITHIN_S = 90


@dataclass(frozen=True)
class Container:
    """One container. ``files`` are contents by the path at which they are mounted; ``probes`` are paths on ``port``."""

    name: str
    command: list[str]
    environment: dict[str, str]
    folder: str
    files: dict[str, str] = field(default_factory=dict)
    port: int = 0
    probes: dict[str, str] = field(default_factory=dict)
    grace_s: int = 0
    healthcheck: list[str] = field(default_factory=list)

    def on_this_machine(self, folder: Path, hosts: Mapping[str, str], app: Path) -> Container:
        """The same with what this machine has: ``hosts`` by the names in the description, ``app`` for its folder."""
        environment = dict(self.environment)
        for path, content in self.files.items():
            beside = folder / self.name / path.lstrip("/")
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(content, encoding="utf-8")
            environment = {name: str(beside) if value == path else value for name, value in environment.items()}
        for described, real in hosts.items():
            environment = {name: value.replace(described, real) for name, value in environment.items()}
        port = self.port
        if port:
            assert environment["DUCTOR_HEALTH_PORT"] == str(port) and environment["DUCTOR_HEALTH_HOST"] == "0.0.0.0"
            port = free_port()
            environment |= {"DUCTOR_HEALTH_PORT": str(port), "DUCTOR_HEALTH_HOST": "127.0.0.1"}
        health = [part.replace(f":{self.port}/", f":{port}/") for part in self.healthcheck]
        return replace(self, environment=environment, port=port, folder=str(app), healthcheck=health)

    def finished(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self._argv(self.command), cwd=self.folder, env=self._variables(), capture_output=True, text=True,
            timeout=END_WITHIN_S, check=False,
        )  # fmt: skip

    def healthy(self) -> bool:
        """Whether the check of the container's own health says so."""
        done = subprocess.run(
            self._argv(self.healthcheck), env=self._variables(), capture_output=True, timeout=END_WITHIN_S, check=False
        )
        return done.returncode == 0

    def start(self, folder: Path) -> Running:
        """Start it."""
        log = folder / f"{self.name}.log"
        spec = ServerSpec(
            self.name, self._argv(self.command), Path(self.folder), log, signal.SIGTERM, environment=self._variables()
        )
        return Running(self, launch(spec), log)

    def _argv(self, command: list[str]) -> list[str]:
        """A program of the image is that of our own environment."""
        return [str(BIN / command[0]), *command[1:]]

    def _variables(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_")}
        return {**ours, **self.environment}


@dataclass(frozen=True)
class Running:
    """A container that runs."""

    container: Container
    process: ServerProcess
    log: Path

    def answers(self, probe: str) -> bool:
        """Whether the URL of this probe answers 200. Fails when the process has ended."""
        if not self.process.alive():
            raise RuntimeError(f"{self.container.name} has ended: {log_tail(self.log)}")
        status, body = self.get(self.container.probes[probe])
        assert status == 200, body
        return True

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 where nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.container.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def terminated(self) -> int | None:
        """End it as an orchestrator does; the exit status, which a SIGKILL after the grace period makes negative."""
        self.process.end(signal.SIGTERM, self.container.grace_s)
        return self.process.exit_status


def of_pods(objects: list[dict[str, Any]], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Container]:
    """The containers of rendered objects, by name of the object's part and of the container; ``secrets`` by name and key."""
    found: dict[str, Container] = {}
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet", "Job", "CronJob"):
            spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
            pod = spec["template"]["spec"]
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                part = re.sub(r"^.*ductor-stream-", "", each["metadata"]["name"])
                name = part if part == container["name"] or "worker" in part else f"{part}-{container['name']}"
                found[name] = _of_pod(name, pod, container, secrets)
    return found


def _of_pod(
    name: str, pod: dict[str, Any], container: dict[str, Any], secrets: Mapping[str, Mapping[str, str]]
) -> Container:
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    files = {
        f"{mounts[volume['name']]}/{item['path']}": secrets[source["secret"]["name"]][item["key"]]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        for item in source["secret"]["items"]
    }
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    probes = {
        kind: container[kind]["httpGet"] for kind in ("livenessProbe", "readinessProbe") if kind in container
    }  # fmt: skip
    assert {ports[probe["port"]] for probe in probes.values()} <= set(ports.values())
    return Container(
        name,
        [*container["command"], *container["args"]],
        {each["name"]: each.get("value", f"{name}-0") for each in container["env"]},
        container["workingDir"],
        files,
        ports.get("health", 0),
        {kind: probe["path"] for kind, probe in probes.items()},
        pod.get("terminationGracePeriodSeconds", 0),
    )


def of_services(services: dict[str, Any]) -> dict[str, Container]:
    """The containers of a compose file that are made of our own image, by name."""
    image = dockerfile()
    return {
        name: Container(
            name,
            [*image["ENTRYPOINT"], *service["command"]],
            {**image["ENV"], **service["environment"]},
            image["WORKDIR"],
            port=image["EXPOSE"],
            grace_s=int(service.get("stop_grace_period", "0s").removesuffix("s")),
            healthcheck=service.get("healthcheck", {}).get("test", ["CMD"])[1:],
        )
        for name, service in services.items()
        if "build" in service
    }


def dockerfile() -> dict[str, Any]:
    """What the last stage of the Dockerfile leaves in the image. The PATH is the machine's own."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.rpartition("\nFROM ")[2].splitlines()[1:] if line and line[0] != "#"]
    said = dict(lines)
    variables = dict(pair.split("=", 1) for word, rest in lines if word == "ENV" for pair in rest.split())
    return {
        "ENTRYPOINT": json.loads(said["ENTRYPOINT"]),
        "ENV": {name: value for name, value in variables.items() if name != "PATH"},
        "WORKDIR": said["WORKDIR"],
        "EXPOSE": int(said["EXPOSE"]),
        "USER": said["USER"],
    }
