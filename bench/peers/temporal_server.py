# mypy: disable-error-code="import-not-found, import-untyped"
# (the peer is installed in an environment of its own)
"""Temporal's server: its schema, its configuration (16 shards, rate limits lifted, its logs at ``warn``), its namespace."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from bench.peers.common import home

_STORES = {"temporal": ("temporal", 50), "temporal_visibility": ("visibility", 20)}
"""Database -> folder of its schema, connections to it."""
_SHARDS = 16
_READY_WITHIN_S = 60.0


def _low_port() -> int:
    """A free port below 32768: the schema for Postgres keeps ports in a smallint."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def apply_schemas(url: str) -> None:
    """By Temporal's own tool."""
    at = urlsplit(url)
    for name, (schema, _) in _STORES.items():
        tool = [
            str(home() / "temporal" / "sql"),
            "--plugin",
            "postgres12",
            "--ep",
            str(at.hostname),
            "-p",
            str(at.port),
        ]
        tool += ["-u", str(at.username), "--pw", unquote(at.password or ""), "--db", name]
        steps = (
            ["create"],
            ["setup-schema", "-v", "0.0"],
            ["update-schema", "--schema-name", f"postgresql/v12/{schema}"],
        )
        for words in steps:
            subprocess.run([*tool, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _store(name: str, at: SplitResult) -> dict[str, Any]:
    size = _STORES[name][1]
    place = {"pluginName": "postgres12", "databaseName": name, "connectAddr": f"{at.hostname}:{at.port}"}
    who = {"user": at.username, "password": unquote(at.password or "")}
    return {
        "sql": {
            "connectProtocol": "tcp",
            "maxConnLifetime": "1h",
            "maxConns": size,
            "maxIdleConns": size,
            **place,
            **who,
        }
    }


def _dynamic() -> dict[str, Any]:
    high, one = [{"value": 1_000_000}], [{"value": 1}]
    limits = ("rps", "namespaceRPS", "persistenceMaxQPS")
    found = {f"{service}.{limit}": high for service in ("frontend", "history", "matching") for limit in limits}
    return found | {f"matching.numTaskqueue{kind}Partitions": one for kind in ("Read", "Write")}


def command(folder: Path, url: str) -> tuple[list[str], str]:
    """Write the configuration below the folder; the server's command line, and where its frontend listens."""
    (folder / "dynamic.yaml").write_text(json.dumps(_dynamic()))  # JSON is YAML
    ports = {name: (_low_port(), _low_port()) for name in ("frontend", "matching", "history", "worker")}
    frontend = f"127.0.0.1:{ports['frontend'][0]}"
    cluster = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": frontend}
    config = {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "temporal",
            "visibilityStore": "temporal_visibility",
            "numHistoryShards": _SHARDS,
            "datastores": {name: _store(name, urlsplit(url)) for name in _STORES},
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
        "services": {
            name: {"rpc": {"grpcPort": grpc, "membershipPort": member, "bindOnIP": "127.0.0.1"}}
            for name, (grpc, member) in ports.items()
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {"active": cluster},
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "dynamicConfigClient": {"filepath": str(folder / "dynamic.yaml"), "pollInterval": "60s"},
    }
    path = folder / "temporal.yaml"
    path.write_text(json.dumps(config, indent=1))
    return [str(home() / "temporal" / "server"), "--config-file", str(path), "--allow-no-auth", "start"], frontend


async def make_namespace(address: str) -> None:
    """Register the namespace and wait until the server lets a workflow start in it."""
    deadline = time.monotonic() + _READY_WITHIN_S
    made = False
    while True:
        try:
            client = await Client.connect(address)
            if not made:
                retention = Duration(seconds=86_400)
                request = RegisterNamespaceRequest(namespace="default", workflow_execution_retention_period=retention)
                await client.workflow_service.register_namespace(request)
                made = True
            handle = await client.start_workflow("none", id="none", task_queue="none")
            await handle.terminate()
            return
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)
