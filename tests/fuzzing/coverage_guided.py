"""The same targets under atheris, which looks for bytes that reach new code: ``make fuzz`` (docs/proof.md).

``python -m fuzzing.coverage_guided TARGET FOLDER [options of libFuzzer]``; what fails is written into the folder, and
belongs into ``found/`` under the name ``TARGET-what-it-is`` once it is understood.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["ductor_stream.protocol", "ductor_stream.worker.window", "ductor_stream.engine"]
):
    from fuzzing.targets import TARGETS, seeds


def main() -> None:
    """Never returns: libFuzzer ends the process, with a status of its own."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={folder}/{name}-", *sys.argv[3:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
