"""Who imports the library, all of it, finds logging as it was."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, logging, pkgutil
import ductor_stream

for module in pkgutil.walk_packages(ductor_stream.__path__, "ductor_stream."):
    if not module.name.endswith(("__main__", ".orders", ".trampoline", ".plugin")):
        importlib.import_module(module.name)
root = logging.getLogger()
assert (root.handlers, root.level, root.filters, logging.lastResort.level) == ([], logging.WARNING, [], logging.WARNING)
touched = [name for name, each in logging.root.manager.loggerDict.items()
           if isinstance(each, logging.Logger) and name.startswith("ductor_stream") and (each.handlers or each.level)]
assert touched == [], touched
print("as it was")
"""


def test_importing_everything_leaves_logging_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "as it was\n", done.stderr
