"""Mutants of ``engine/``: ``PYTHONPATH=tests python -m mutation tick reduce/attempt``, without a name all modules.

What is found is kept in ``mutants/found.json`` and printed: a line for each module, and what survived.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Property tests with few examples: a mutant that only many would find is as good as not found.
os.environ.setdefault("DUCTOR_TEST_SCALE", "0.2")

import pytest
from hypothesis import Phase, settings
from mutmut.__main__ import create_mutants
from mutmut.configuration import config
from mutmut.mutation import trampoline
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths

from mutation.trials import FOUND, Trials, registered

_ENGINE = "ductor_stream.engine."


def make() -> None:
    """The mutants of all modules, in ``mutants/``."""
    # mutmut takes a module that it only copied, since another one was asked for, for one whose mutants are made.
    shutil.rmtree("mutants/ductor_stream", ignore_errors=True)
    Path("mutants").mkdir(exist_ok=True)
    copy_src_dir()
    with contextlib.redirect_stdout(io.StringIO()):
        copy_also_copy_files()
        create_mutants(1)
    setup_source_paths()


def table(found: dict[str, str]) -> Iterator[str]:
    """A line for each module that was tried, and the names of what survived."""
    modules: dict[str, Counter[str]] = {}
    for name, verdict in found.items():
        modules.setdefault(name.removeprefix(_ENGINE).rpartition(".")[0], Counter())[verdict] += 1
    for module, counts in sorted(modules.items()):
        yield f"| `{module}` | {counts.total()} | {counts['killed']} | {counts.total() - counts['killed']} |"
    yield from (f"{verdict}: {name}" for name, verdict in found.items() if verdict != "killed")


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="of engine/: tick, reduce/attempt, planners; all unless named")
    parser.add_argument("--again", action="store_true", help="do not try again what was killed before")
    parser.add_argument("--tests", nargs="*", default=config().pytest_add_cli_args_test_selection)
    return parser.parse_args()


def main() -> int:
    """0 when all mutants were tried: survivors are printed, and are for a person to judge."""
    asked = arguments()
    if asked.modules:
        config().only_mutate = [
            f"ductor_stream/engine/{name}{end}" for name in asked.modules for end in (".py", "/*.py")
        ]
    make()
    trampoline.wrap_in_trampoline = registered  # type: ignore[assignment]
    # Nobody reads the smallest example of a mutant.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None, deadline=None)
    settings.load_profile("mutants")
    os.chdir("mutants")
    if not asked.again:
        FOUND.unlink(missing_ok=True)
    wanted = [f"{_ENGINE}{name.replace('/', '.')}." for name in asked.modules] or [_ENGINE]
    quiet = ["--override-ini=addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    without = [f"-pno:{plugin}" for plugin in ("terminal", "randomly", "cacheprovider")]
    code = pytest.main([*quiet, *without, "--rootdir=.", *asked.tests], plugins=[Trials(wanted)])
    if FOUND.exists():
        print("\n".join(table(json.loads(FOUND.read_text()))))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
