"""A process whose workflow code hangs ends itself; one that works does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from ductor_stream.cli.hangs import DeadMansSwitch
switch = DeadMansSwitch(limit_s=0.5)
switch.hold(0.0)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    if sys.argv[1] != "lock held":
        switch.hold(9.0 if sys.argv[1] == "hangs" else 0.0)
    for _ in range(1000): pass
switch.release()
print("ended in good order")
"""


@pytest.mark.parametrize(("how", "code"), [("hangs", 1), ("lock held", 1), ("works", 0)])
def test_the_switch(how: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert ("Timeout" in done.stderr) == (code == 1)
