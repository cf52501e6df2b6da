"""What a workflow may not do, each refused with what to do instead.

A workflow is replayed: what it does must come from its recorded events alone. Files, sockets, threads, processes and
signals belong into steps. Refused at the call, not when awaited, so that the traceback has the user's line: methods of
the event loop by overriding them, everything else where the interpreter announces it to audit hooks.
"""

from __future__ import annotations

import sys
from asyncio import events
from typing import Any, Final, NoReturn

from ductor_stream.errors import OutsideWorld

OutsideWorldError = OutsideWorld

_REACHES: Final = "reaches outside the workflow, which replay cannot repeat: do this in a step"

_AUDITED: Final = {
    "builtins.input": "input",
    "open": "open",
    "time.sleep": "time.sleep",
    "_thread.start_new_thread": "threading.Thread.start",
    "_thread.start_joinable_thread": "threading.Thread.start",
    "subprocess.Popen": "subprocess.Popen",
    "sqlite3.connect": "sqlite3.connect",
    "socket.__new__": "socket.socket",
    **{f"os.{name}": f"os.{name}" for name in ("system", "fork", "forkpty", "exec", "spawn", "posix_spawn", "kill")},
    **{f"os.{name}": f"os.{name}" for name in ("listdir", "scandir", "mkdir", "remove", "rename", "rmdir", "link")},
    **{f"os.{name}": f"os.{name}" for name in ("symlink", "truncate", "utime", "chmod", "chown")},
    **{f"socket.{name}": f"socket.{name}" for name in ("connect", "bind", "sendto", "sendmsg", "getaddrinfo")},
    **{f"socket.{name}": f"socket.{name}" for name in ("gethostbyname", "gethostbyaddr", "getnameinfo")},
}
"""Audit events (docs.python.org/3/library/audit_events.html) of what reaches outside, and what people call it.

Python announces threads from 3.12 on and ``time.sleep`` from 3.13 on.
"""

_READERS: Final = frozenset(
    {"importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "linecache", "zoneinfo", "bdb", "pdb"}
)
"""Modules whose reading of files changes nothing for a replay: imports, lines of tracebacks, time zones, the debugger."""


def _outside(name: str, known_as: str = "") -> Any:
    """A method that refuses ``loop.<name>``; ``known_as`` is the asyncio function through which people get there."""
    called = f"{known_as} (loop.{name})" if known_as else f"loop.{name}"
    return _refusal(name, f"{called} {_REACHES}")


def _engines(name: str) -> Any:
    """A method that refuses ``loop.<name>`` because the engine alone runs and configures a workflow's loop."""
    return _refusal(name, f"loop.{name} is the engine's: a workflow runs on a loop that its coordinator drives")


def _refusal(name: str, message: str) -> Any:
    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise OutsideWorldError(message)

    refuse.__name__ = name
    refuse.__doc__ = f"Raises OutsideWorldError: {message}."
    return refuse


class NoOutsideWorld:
    """Every method of an event loop that needs the world outside the workflow, or belongs to the engine."""

    run_in_executor = _outside("run_in_executor", "asyncio.to_thread")
    set_default_executor = _outside("set_default_executor")
    shutdown_default_executor = _outside("shutdown_default_executor")
    call_soon_threadsafe = _outside("call_soon_threadsafe", "asyncio.run_coroutine_threadsafe")

    getaddrinfo = _outside("getaddrinfo")
    getnameinfo = _outside("getnameinfo")
    create_connection = _outside("create_connection", "asyncio.open_connection")
    create_server = _outside("create_server", "asyncio.start_server")
    create_unix_connection = _outside("create_unix_connection", "asyncio.open_unix_connection")
    create_unix_server = _outside("create_unix_server", "asyncio.start_unix_server")
    create_datagram_endpoint = _outside("create_datagram_endpoint")
    connect_accepted_socket = _outside("connect_accepted_socket")
    start_tls = _outside("start_tls")
    sendfile = _outside("sendfile")

    connect_read_pipe = _outside("connect_read_pipe")
    connect_write_pipe = _outside("connect_write_pipe")
    subprocess_exec = _outside("subprocess_exec", "asyncio.create_subprocess_exec")
    subprocess_shell = _outside("subprocess_shell", "asyncio.create_subprocess_shell")

    add_reader = _outside("add_reader")
    remove_reader = _outside("remove_reader")
    add_writer = _outside("add_writer")
    remove_writer = _outside("remove_writer")
    sock_accept = _outside("sock_accept")
    sock_connect = _outside("sock_connect")
    sock_recv = _outside("sock_recv")
    sock_recv_into = _outside("sock_recv_into")
    sock_recvfrom = _outside("sock_recvfrom")
    sock_recvfrom_into = _outside("sock_recvfrom_into")
    sock_sendall = _outside("sock_sendall")
    sock_sendfile = _outside("sock_sendfile")
    sock_sendto = _outside("sock_sendto")

    add_signal_handler = _outside("add_signal_handler")
    remove_signal_handler = _outside("remove_signal_handler")

    run_forever = _engines("run_forever")
    run_until_complete = _engines("run_until_complete")
    stop = _engines("stop")
    set_debug = _engines("set_debug")
    set_task_factory = _engines("set_task_factory")
    set_exception_handler = _engines("set_exception_handler")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _AUDITED or not isinstance(events._get_running_loop(), NoOutsideWorld):
        return
    if not _only_reads(event, arguments):
        raise OutsideWorldError(f"{_AUDITED[event]}() {_REACHES}")


def _only_reads(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open" and "/zoneinfo/" in str(arguments[0]):
        return True  # by C code, which no frame shows
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "run_ready":
        if frame.f_globals.get("__name__", "").partition(".")[0] in _READERS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def install() -> None:
    """Watch over code of workflows, for the rest of the process.

    Outside of workflows it costs a set lookup for each audit event.
    """
    sys.addaudithook(_audit)
