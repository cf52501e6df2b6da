"""The folder of one Postgres cluster: made by ``initdb``, configured, checked before a start."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ductor_stream.dev.binaries import Binaries, find_binaries, has_passwd_entry
from ductor_stream.dev.process import ServerProcess, ServerSpec, command_line, end_orphan, launch, log_tail, run_once
from ductor_stream.errors import DevStackError

_CONF = "ductor.conf"


class Cluster:
    """The files of one embedded Postgres under ``folder``.

    ``data/`` is Postgres's own and belongs to the user that runs it; everything else (password,
    log, ports) is ours. As root the server runs as another uid, for which the parents of ``folder``
    may be closed (``/root``, pytest's folders: mode 0700). No mode of a folder outside is touched:
    we open ``data/`` while we are root, the server inherits the descriptor, and finds its folder as
    ``/proc/self/fd/N``, which Linux follows without looking at the parents. (Inheriting the working
    folder instead is not enough: programs up to Postgres 15 leave it and cannot come back.)
    """

    def __init__(self, folder: Path, named_binaries: Path | None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "postgres.log"
        self.binaries: Binaries = find_binaries(named_binaries, self.data)

    @property
    def marker(self) -> str:
        """What tells the postmaster of this folder from any other process, in its command line."""
        return f"ductor.data_dir={self.data}"

    def end_leftovers(self) -> None:
        """End a postmaster of ours whose parent was killed; clear a pid file whose pid is now somebody else's.

        To be called before a port is picked: what is left still has the remembered one.
        """
        lines = self._pid_file()
        if not lines or not lines[0].strip().isdigit():
            return
        pid = int(lines[0])
        end_orphan(pid, self.marker, signal.SIGINT)
        # Postgres itself sees through a pid that is free; one that was reused, or a zombie, would stop it.
        if _exists(pid) and self.marker not in command_line(pid):
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def prepare(self, port: int, settings: Mapping[str, str]) -> None:
        """Make the cluster if it is new, and write its settings.

        Raises:
            DevStackError: it cannot be made, or was made by another major version.
        """
        if not self.data.exists():
            self._make()
        self._refuse_other_major()
        ours = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **settings}
        self._write(self.data / _CONF, "".join(f"{name} = {_quoted(value)}\n" for name, value in ours.items()))

    def launch(self) -> ServerProcess:
        """Start the postmaster; it is not ready yet.

        Raises:
            DevStackError: the process cannot be made.
        """
        with self._reach(self.data) as (path, inherited):
            command = [str(self.binaries.folder / "postgres"), "-D", path, "-c", self.marker]
            return launch(self._spec("Postgres", command, self.log, inherited=inherited))

    def ready(self, pid: int) -> bool:
        """Whether the postmaster ``pid`` accepts connections.

        It says so itself, in line 8 of its pid file; line 1 tells whether the file is its own.
        """
        lines = self._pid_file()
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def password(self) -> str:
        """The superuser's password, made once and kept in a file that only we can read.

        Raises:
            DevStackError: the file of a cluster that exists is gone.
        """
        path = self.folder / "password"
        if path.exists():
            return path.read_text(encoding="ascii").strip()
        if self.data.exists():
            raise DevStackError(f"{path} is gone, and with it the way into {self.data}: delete {self.folder}")
        made = secrets.token_urlsafe(18)
        scratch = path.with_name("password.new")
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(made + "\n")
        scratch.rename(path)
        return made

    # -- making it -----------------------------------------------------------------------

    def _make(self) -> None:
        if self.binaries.user is None and not has_passwd_entry(os.geteuid()):
            raise DevStackError(
                f"Postgres needs a passwd entry for uid {os.geteuid()}: add one to /etc/passwd, "
                "or use a database that exists (--database URL)"
            )
        # Under another name until it is complete: a crash midway leaves nothing that looks like a cluster.
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        self._give_away(new)
        log = self.folder / "initdb.log"
        log.unlink(missing_ok=True)
        status = self._initdb(new, log)
        if status != 0:
            raise DevStackError(f"initdb failed in {self.folder}; log: {log}; its last lines:\n{log_tail(log)}")
        with (new / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write(f"\ninclude_if_exists = '{_CONF}'\n")
        new.rename(self.data)

    def _initdb(self, new: Path, log: Path) -> int:
        locale = "C" if sys.platform == "darwin" else "C.UTF-8"  # not every macOS has C.UTF-8
        options = ["-U", "postgres", "-A", "scram-sha-256", "--pwfile=/dev/stdin", "-E", "UTF8", f"--locale={locale}"]
        with tempfile.TemporaryFile() as password, self._reach(new) as (path, inherited):
            password.write(self.password().encode() + b"\n")
            password.seek(0)
            if self.binaries.user is not None:
                os.fchown(password.fileno(), *self.binaries.user)
            command = [str(self.binaries.folder / "initdb"), "-D", path, *options, "--no-instructions"]
            return run_once(self._spec("initdb", command, log, stdin=password.fileno(), inherited=inherited))

    @contextmanager
    def _reach(self, folder: Path) -> Iterator[tuple[str, Sequence[int]]]:
        """The path by which a server's process finds ``folder``, and the descriptors it must inherit for that."""
        if self.binaries.user is None or sys.platform != "linux":
            yield str(folder), ()
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}", (descriptor,)
        finally:
            os.close(descriptor)

    def _spec(
        self, name: str, command: list[str], log: Path, *, inherited: Sequence[int], stdin: int = subprocess.DEVNULL
    ) -> ServerSpec:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        return ServerSpec(
            name=name,
            command=command,
            folder=Path("/"),  # programs up to Postgres 15 leave their working folder and must be able to return
            log=log,
            stop_signal=signal.SIGINT,
            user=self.binaries.user,
            # English messages; and a known time zone, else initdb compares all that there are with the clock.
            environment=environment | {"LC_ALL": "C", "TZ": "UTC"},
            stdin=stdin,
            inherited=inherited,
        )

    def _give_away(self, path: Path) -> None:
        if self.binaries.user is not None:
            os.chown(path, *self.binaries.user)

    def _write(self, path: Path, text: str) -> None:
        scratch = path.with_name(path.name + ".new")
        scratch.write_text(text, encoding="utf-8")
        scratch.chmod(0o600)
        self._give_away(scratch)
        scratch.replace(path)

    # -- before a start ------------------------------------------------------------------

    def _refuse_other_major(self) -> None:
        try:
            made_by = (self.data / "PG_VERSION").read_text(encoding="ascii").strip()
        except OSError as error:
            raise DevStackError(f"{self.data} is no Postgres cluster: move it away ({error.strerror})") from error
        if made_by != str(self.binaries.major):
            raise DevStackError(
                f"{self.data} was made by Postgres {made_by}, but {self.binaries.folder} is Postgres "
                f"{self.binaries.major}: name the folder with the programs of {made_by} in DUCTOR_POSTGRES_BIN, "
                "or delete the data folder (and with it all runs)"
            )

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
