"""Builds the wheel and the sdist, and installs each into an empty environment of every Python there is: ``make packages``.

    python tests/packages.py [PYTHON...]

Without arguments: python3.11 to python3.14, those of them that are found. It needs the package registry, as
``make install`` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, in an environment of its own; what it says."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DUCTOR_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tried(python: str, package: Path, folder: Path) -> str:
    """Install the package into an empty environment of that Python, and use it; the version of Python."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    inside = folder / "venv" / "bin"
    run(inside / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, cwd=folder)
    run(inside / "python", "-m", "pip", "check", cwd=folder)
    (folder / "smoke.py").write_text(PROGRAM, "utf-8")
    run(inside / "python", "-W", "error", "smoke.py", cwd=folder)
    site = run(inside / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    for words in COMMANDS:
        run(inside / "ductor-stream", *(word.format(site=site) for word in words), cwd=folder)
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
