"""Trains the AOT cache of the broker's JVM, once per machine, and says how to use it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ductor_stream.dev.broker import BrokerRun, format_if_new, start_broker
from ductor_stream.dev.jvm import aot_file, java_command
from ductor_stream.dev.lock import exclusive
from ductor_stream.dev.paths import cache_dirs, writable
from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.process import run_once
from ductor_stream.dev.properties import broker_properties
from ductor_stream.dev.scratch import scratch_folder
from ductor_stream.errors import DevStackError

_log = logging.getLogger("ductor_stream.dev")

_WRITTEN_WITHIN_S = 180.0
"""The JVM writes what it has seen at its end: 3 s on two free cores."""

_CLIENT_TIMEOUT_S = 30.0
_SCRATCH = "train-"
_HEAP = "-Xmx512m"

_UNUSED_AFTER_S = 30 * 24 * 3600.0
"""Each use sets the file's time of change."""

_QUIET = {"log_level": 0}
"""The client would tell stderr that the coordinator is still loading, and that the broker went away."""


def aot_flags(jars: Sequence[Path], fallback: Path | None = None) -> list[str]:
    """The JVM flags that use the AOT cache; trains it if there is none. Empty if that fails (logged).

    Args:
        jars: the checked jars of the broker.
        fallback: the cache folder if the home directory cannot be used (see ``paths.cache_dirs``).
    """
    candidates = [aot_file(folder, jars) for folder in cache_dirs(fallback)]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        try:
            found = _trained(jars, candidates)
        except (DevStackError, OSError, KafkaException) as error:
            _log.warning("no AOT cache for Kafka's JVM, it starts in 2-3 s instead of 1 s: %s", error)
            return []
    _mark_used(found)
    return [f"-XX:AOTCache={found}"]


def _trained(jars: Sequence[Path], candidates: Sequence[Path]) -> Path:
    path = next((path for path in candidates if writable(path.parent)), None)
    if path is None:
        raise DevStackError("no cache folder can be written: set DUCTOR_CACHE_DIR to one that can")
    with exclusive(path.parent / "train.lock"):
        if not path.is_file():
            _sweep(path.parent)
            with scratch_folder(path.parent, _SCRATCH) as scratch:
                _train(jars, scratch, path)
            _drop_unused(path)
    return path


def _mark_used(path: Path) -> None:
    with suppress(OSError):  # a cache that is only readable serves as well
        os.utime(path)


def _drop_unused(kept: Path) -> None:
    """Delete the caches of JDKs that nobody starts any more: each virtual environment trains its own 65 MB."""
    for path in kept.parent.glob("*.aot"):
        with suppress(OSError):
            if path.stat().st_mtime < kept.stat().st_mtime - _UNUSED_AFTER_S:
                path.unlink()


def _sweep(folder: Path) -> None:
    """What a machine that went down left: whoever holds the lock trains alone."""
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def _train(jars: Sequence[Path], scratch: Path, target: Path) -> None:
    """Record a run, then make the cache of it.

    In two steps, each in a JVM that is our own child: with ``AOTCacheOutput`` the first JVM would start the second
    one, which nobody ends when we are killed.
    """
    began = time.monotonic()
    _log.info("preparing the fast start of Kafka's JVM, once for this machine (10-20 s)")
    seen, output = scratch / "kafka.aotconf", scratch / "kafka.aot"
    port = pick_port()
    run = BrokerRun(
        folder=scratch,
        jars=jars,
        flags=[_HEAP, "-XX:AOTMode=record", f"-XX:AOTConfiguration={seen}"],
        properties=broker_properties(port, pick_port(), {}),
        port=port,
        stop_signal=signal.SIGKILL,
    )
    format_if_new(run, [])
    server = start_broker(run)
    try:
        _exercise(f"127.0.0.1:{port}")
    finally:
        server.end(signal.SIGTERM, _WRITTEN_WITHIN_S)
    flags = [_HEAP, "-XX:AOTMode=create", f"-XX:AOTConfiguration={seen}", f"-XX:AOTCache={output}"]
    status = run_once(run.spec(java_command(jars, flags, []), scratch / "create.log"))
    if not output.is_file():
        raise DevStackError(f"the JVM wrote no AOT cache (exit status {status})")
    output.chmod(0o644)  # as an image's build runs this as root, and its user only reads it
    os.replace(output, target)
    _log.info("prepared in %.0f s", time.monotonic() - began)


def _exercise(bootstrap: str) -> None:
    """Use what every start of ours uses, so that it is in the cache: topics, a transaction, a group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    for made in admin.create_topics([NewTopic("train", num_partitions=2, replication_factor=1)]).values():
        made.result(_CLIENT_TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "train", **_QUIET})
    producer.init_transactions(_CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("train", key=b"k", value=b"v")
    producer.commit_transaction(_CLIENT_TIMEOUT_S)
    for protocol in ("classic", "consumer"):
        _consume_one(bootstrap, protocol)


def _consume_one(bootstrap: str, protocol: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": protocol, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", **_QUIET})
    try:
        consumer.subscribe(["train"])
        if consumer.poll(_CLIENT_TIMEOUT_S) is not None:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
