"""After a change of code: which open runs it would no longer decide as it did, said by ``dev --reload``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import click

_REPLAYED = 200
"""So many of the newest open runs are replayed after a change: a second or two."""


class Misfits:
    """Open runs that no longer fit the changed code, found beside all else by a process that replays them."""

    def __init__(self, spec: str, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", "ductor_stream.cli.main", "replay", spec]
        self._command += ["--open", str(_REPLAYED), "--json"]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as this)

    def look_for(self) -> None:
        """Begin; a search that is under way is of older code, and is given up."""
        self._end()
        self._answer.seek(0)
        self._answer.truncate()
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=quiet, stdout=self._answer, stderr=quiet
        )

    def tell(self) -> None:
        """Say which they are, once that is known."""
        if self._process is None or self._process.poll() is None:
            return
        self._process = None
        self._answer.seek(0)
        try:
            histories = json.loads(self._answer.read())["histories"]
        except ValueError:
            return  # it could not be asked: the code fails (the app says why), or Postgres is away
        for each in histories:
            if not each["ok"]:
                click.echo(f"run {each['run_id']} no longer fits: {each['message']}", err=True)

    def close(self) -> None:
        """Give up what is under way."""
        self._end()
        self._answer.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
