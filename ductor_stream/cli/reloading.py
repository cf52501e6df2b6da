"""``ductor-stream dev --reload``: the app runs in a child process that is started anew when a Python file changes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families

from ductor_stream.cli.misfits import Misfits
from ductor_stream.cli.running import Stop, stop_on_signals
from ductor_stream.config import Settings
from ductor_stream.dev.ports import pick_port
from ductor_stream.dev.process import ServerProcess, ServerSpec, launch
from ductor_stream.telemetry.health import ask

_LOOK_EVERY_S = 0.3
_ASK_WITHIN_S = 1.0
_END_WITHIN_S = 10.0
_NAMED = 3
"""So many changed files are named; a checkout of another branch changes hundreds."""
_OWNED = "ductor_partitions_owned"
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def stamps(folder: Path) -> dict[Path, float]:
    """Modification times of the Python files below a folder; hidden folders and installed packages are not looked at."""
    found: dict[Path, float] = {}
    for path in _files(folder):
        try:
            found[path] = path.stat().st_mtime
        except OSError:
            continue  # gone since it was listed
    return found


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                yield Path(root, name)


def run_reloading(spec: str, settings: Settings, concurrency: int, data_dir: Path, ready: Callable[[], None]) -> None:
    """Serve the app until a signal comes; ``ready`` is called once, when it first is. Its log is kept in ``data_dir``.

    Of a change one line says that it was seen, and another that the new code is in effect: processes of the old code
    have ended by then, and those of the new are ready.
    """
    folder = Path.cwd()
    with stop_on_signals() as stop:
        seen = stamps(folder)
        child = _Child(spec, settings, concurrency, data_dir)
        news, misfits = _News(ready), Misfits(spec, child.environment)
        try:
            while not stop.wait(_LOOK_EVERY_S):
                now = stamps(folder)
                if now != seen:
                    news.changed(path.relative_to(folder) for path in changes(seen, now))
                    seen = now
                    child.restart()
                child.pass_on_log()
                if news.waits and child.ready() and news.tell():
                    misfits.look_for()
                misfits.tell()
                _mourn(child, stop)
        finally:
            misfits.close()
            child.end()
            child.pass_on_log()


def changes(before: Mapping[Path, float], after: Mapping[Path, float]) -> list[Path]:
    """Files that were written, made or deleted between two looks."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class _News:
    """What is told once the app is ready: at first that it runs, then which files it runs anew."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready: Callable[[], None] | None = ready
        self._changed: set[str] = set()
        self.waits = True

    def changed(self, paths: Iterable[Path]) -> None:
        self._changed |= set(map(str, paths))
        self.waits = True
        click.echo(f"{self._named()} changed: starting anew", err=True)

    def tell(self) -> bool:
        """Whether there is other code than before."""
        self.waits = False
        changed = bool(self._changed)
        if self._ready is not None:
            self._ready()
            self._ready = None
        elif changed:
            click.echo(f"{self._named()} changed: coordinator and worker run the new code", err=True)
        self._changed.clear()
        return changed

    def _named(self) -> str:
        names = sorted(self._changed)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more


def _mourn(child: _Child, stop: Stop) -> None:
    """The app ended by itself, most often by an error in its code: say why, and wait for the next change."""
    if child.told_end or child.alive():
        return
    child.told_end = True
    if not stop.is_set():
        click.echo("the app has ended; waiting for a change", err=True)


class _Child:
    """The process that serves the app."""

    def __init__(self, spec: str, settings: Settings, concurrency: int, data_dir: Path) -> None:
        self._port = settings.health_port or pick_port()
        self._command = [sys.executable, "-m", "ductor_stream.cli.main", "serve", spec]
        self._command += ["--health-port", str(self._port), "--concurrency", str(concurrency)]
        self.environment = settings.environment(os.environ)
        self.log = data_dir / "app.log"
        self.told_end, self._passed_on = False, 0
        self._process = self._start()

    def _start(self) -> ServerProcess:
        self.told_end, self._passed_on = False, 0
        spec = ServerSpec(
            name="the app",
            command=self._command,
            folder=Path.cwd(),
            log=self.log,
            stop_signal=signal.SIGTERM,
            environment=self.environment,
        )
        return launch(spec)

    def alive(self) -> bool:
        return self._process.alive()

    def ready(self) -> bool:
        """Whether nothing is amiss with it, and it owns runs: from then on a start is taken at once."""
        try:
            ask(self._port, "/readyz", _ASK_WITHIN_S)
            families = text_string_to_metric_families(ask(self._port, "/metrics", _ASK_WITHIN_S))
        except OSError:
            return False
        return any(sample.value > 0 for each in families for sample in each.samples if sample.name == _OWNED)

    def pass_on_log(self) -> None:
        """What the app has logged since the last time, to where our own logs go."""
        with self.log.open("rb") as file:
            file.seek(self._passed_on)
            fresh = file.read()
        self._passed_on += len(fresh)
        sys.stderr.buffer.write(fresh)
        sys.stderr.flush()

    def restart(self) -> None:
        self.end()
        self.pass_on_log()
        self._process = self._start()

    def end(self) -> None:
        self._process.end(signal.SIGTERM, _END_WITHIN_S)
