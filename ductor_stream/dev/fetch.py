"""``python -m ductor_stream.dev.fetch``: make the installation of the embedded servers complete.

Fetches and checks Kafka's jars (44 MB) and trains the AOT cache of its JVM. After it everything
works without a network. Running it again does nothing. Exit status 1 and one line if it fails.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from ductor_stream.dev.aot import aot_flags
from ductor_stream.dev.binaries import find_binaries
from ductor_stream.dev.jars import ensure_jars
from ductor_stream.errors import DevStackError


def main() -> int:
    """Fetch, check and train; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        jars = ensure_jars()
        aot_flags(jars)
        with tempfile.TemporaryDirectory() as folder:
            postgres = find_binaries(None, Path(folder))
    except DevStackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Kafka: {len(jars)} jars in {jars[0].parent}\nPostgres {postgres.major}: {postgres.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
