"""Calls of an event loop that a workflow may not make, each refused with what to do instead.

A workflow is replayed: what it does must come from its recorded events alone. Sockets, threads, processes and signals
belong into steps. Refused at the call, not when awaited, so that the traceback has the user's line.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ductor_stream.errors import OutsideWorld

OutsideWorldError = OutsideWorld


def _outside(name: str, known_as: str = "") -> Any:
    """A method that refuses ``loop.<name>``; ``known_as`` is the asyncio function through which people get there."""
    called = f"{known_as} (loop.{name})" if known_as else f"loop.{name}"
    return _refusal(name, f"{called} reaches outside the workflow, which replay cannot repeat: do this in a step")


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
