"""Check the model with TLC: ``python model/check.py`` (docs/model.md). Exit status 0 when every answer is the expected one.

The protocol as it is must break no rule, and each seeded bug must break one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ductor_stream.dev.jars import ensure_jars, listed_jars
from ductor_stream.dev.jvm import class_path, java, java_environment

HERE = Path(__file__).resolve().parent

BUGS = {
    "no_fence": "R3",
    "resubmitted_blindly": "R3",
    "offsets_apart": "R6",
    "no_dedupe": "R6",
    "offsets_first": "R5",
    "read_in_the_raising_statement": "R5",
    "no_redrive": "R5",
    "last_ack_confirms_all": "R5",
    "drop_when_sent": "R5",
    "failure_counts_as_done": "R5",
    "dispatch_first": "R4",
    "unknown_is_landed": "R4",
}
"""Seeded bug -> the rule that it breaks."""


@dataclass(frozen=True)
class Answer:
    """What TLC said. ``broken`` is a rule's number, "deadlock", or "" when all holds."""

    broken: str
    states: int
    said: str


def check(bug: str = "none", *, batch: int = 2, disruptions: int = 2) -> Answer:
    """Run TLC on all behaviours of the model with so many inputs per commit and so many things that go wrong.

    Raises RuntimeError when TLC itself fails, DevStackError without the jar or the JDK.
    """
    jars = ensure_jars(jars=listed_jars(HERE / "jars.txt"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copy(HERE / "Partition.tla", folder)
        config = (HERE / "Partition.cfg").read_text()
        config = re.sub(r'Bug = ".*"', f'Bug = "{bug}"', config)
        config = re.sub(r"BatchMax = \d+", f"BatchMax = {batch}", config)
        config = re.sub(r"Disruptions = \d+", f"Disruptions = {disruptions}", config)
        (folder / "Partition.cfg").write_text(config)
        # TLC unpacks its own modules there, under names that two runs would share.
        flags = [f"-Djava.io.tmpdir={folder}", "-Xmx1g"]
        # A bug is found in a second, most of which would go into compiling for a search that is over by then.
        flags += ["-XX:+UseParallelGC"] if bug == "none" else ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = [str(java()), *flags, "-cp", class_path(jars), "tlc2.TLC", "-workers", "2", "Partition.tla"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env=java_environment(), timeout=1800
        )
    return _answer(done.stdout)


def _answer(said: str) -> Answer:
    found = re.search(r"(\d+) distinct states found, 0 states left on queue", said)
    states = int(found.group(1)) if found else 0
    if violated := re.search(r"Invariant (\w+) is violated", said):
        return Answer(violated.group(1).partition("_")[0], states, said)
    if "Deadlock reached" in said:
        return Answer("deadlock", states, said)
    if "No error has been found" not in said:
        raise RuntimeError(f"TLC did not finish:\n{said}")
    return Answer("", states, said)


def main() -> int:
    """Check the protocol, then each bug; prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2, help="most inputs per commit")
    parser.add_argument("--disruptions", type=int, default=2, help="how many things may go wrong in one behaviour")
    parser.add_argument("--bug", choices=BUGS, help="this bug alone, with the trace that shows it")
    arguments = parser.parse_args()
    wrong = 0
    for bug in [arguments.bug] if arguments.bug else ["none", *BUGS]:
        began = time.perf_counter()
        answer = check(bug, batch=arguments.batch, disruptions=arguments.disruptions)
        wrong += answer.broken != BUGS.get(bug, "")
        seconds = time.perf_counter() - began
        print(
            f"{bug:32} {answer.broken or f'all rules hold in {answer.states:,} states':40} {seconds:.0f} s", flush=True
        )
        if arguments.bug:
            print(answer.said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
