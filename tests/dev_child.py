"""A process that starts the embedded servers, says so in one JSON line, and waits to be killed.

``python dev_child.py DATA_DIR``. The servers are started by a thread that ends at once: they must
live on after it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from ductor_stream.dev import DevStack


def main() -> None:
    stack = DevStack(Path(sys.argv[1]))
    starter = threading.Thread(target=stack.start)
    starter.start()
    starter.join()
    assert stack.kafka is not None
    assert stack.postgres is not None
    told = {
        "kafka": stack.kafka.pid,
        "postgres": stack.postgres.pid,
        "bootstrap": stack.kafka.bootstrap,
        "url": stack.postgres.url,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
