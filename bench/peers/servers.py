"""``python -m bench.peers.servers postgres|kafka FOLDER [flush]``: one server until SIGTERM, for peers of other Pythons.

Prints one line of JSON, its pid and its address, when it is ready. ``flush`` has Kafka call fsync for every batch.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from bench.servers import POSTGRES_SETTINGS
from ductor_stream.dev import EmbeddedKafka, EmbeddedPostgres


def main() -> None:
    """Start it, tell, wait, stop it."""
    kind, folder, *flags = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started: EmbeddedKafka | EmbeddedPostgres
    if kind == "kafka":
        extra = {"log.flush.interval.messages": "1"} if "flush" in flags else {}
        started = EmbeddedKafka(Path(folder), extra=extra, heap="1g", fast_start=False)
    else:
        started = EmbeddedPostgres(Path(folder), settings=POSTGRES_SETTINGS)
    try:
        started.start()
        url = started.bootstrap if isinstance(started, EmbeddedKafka) else started.url
        print(json.dumps({"pid": started.pid, "url": url}), flush=True)
        signal.pause()
    finally:
        started.stop()


if __name__ == "__main__":
    main()
