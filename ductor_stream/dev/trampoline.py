"""What a server's process runs before it becomes the server: started as a file, by ``python -I -S``.

``trampoline.py PARENT SIGNAL UID GID COMMAND…`` gives up root if UID is not ``-``, asks Linux to
send SIGNAL when the parent dies, and executes COMMAND: the process keeps its pid, so that the
server is our own child. A file of its own rather than ``preexec_fn``, which may deadlock in a
program with threads. Imports nothing but the standard library, and all of it before root is given
up: the interpreter's own folders may be closed to the other uid.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the server; ends with status 126 and one line on stderr if that cannot be."""
    parent, death_signal, uid, gid, *command = arguments
    # Whoever started us may ignore these (nohup, a shell's background job): a JVM would keep it so.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o077)
    try:
        if uid != "-":
            os.setgroups([])
            os.setgid(int(gid))
            os.setuid(int(uid))
        if sys.platform == "linux":
            _die_with(int(parent), int(death_signal))
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]} as uid {os.geteuid()}: {error.strerror}\n")
        os._exit(126)


def _die_with(parent: int, death_signal: int) -> None:
    """Have the kernel signal this process when the thread that forked it ends. After setuid, which clears it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        sys.stderr.write(f"prctl failed (errno {ctypes.get_errno()}): kill -9 of the parent would leave this running\n")
    if os.getppid() != parent:
        os._exit(125)  # it died before the line above: nobody would ever signal us


if __name__ == "__main__":
    main(sys.argv[1:])
