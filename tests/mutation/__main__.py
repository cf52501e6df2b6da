"""Mutants of ``engine/``: ``PYTHONPATH=tests python -m mutation tick state``, without a name all modules.

What is found is kept in ``mutants/found.json`` and printed: a line for each module, and what survived. With ``--again``
first, mutants that were killed before are not tried again: for tests that were written since.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
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


def main() -> int:
    """0 when all mutants were tried: survivors are printed, and are for a person to judge."""
    make()
    trampoline.wrap_in_trampoline = registered  # type: ignore[assignment]
    # Nobody reads the smallest example of a mutant.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None, deadline=None)
    settings.load_profile("mutants")
    os.chdir("mutants")
    names = sys.argv[1:]
    if names[:1] == ["--again"]:
        names = names[1:]
    else:
        FOUND.unlink(missing_ok=True)
    wanted = [f"{_ENGINE}{name.replace('/', '.')}." for name in names] or [_ENGINE]
    quiet = ["--override-ini=addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    without = [f"-pno:{plugin}" for plugin in ("terminal", "randomly", "cacheprovider")]
    options = [*quiet, *without, "--rootdir=.", *config().pytest_add_cli_args_test_selection]
    code = pytest.main(options, plugins=[Trials(wanted)])
    print("\n".join(table(json.loads(FOUND.read_text()))))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
