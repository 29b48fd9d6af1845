"""An audit hook that ends the process at the first act that no test of a function needs.

The kernel's measures of `isolation` do not depend on it. It adds what some systems cannot enforce,
and it names the act. Python's documentation is right that a hook is no sandbox by itself: native
code and programs that rewrite the interpreter's own objects get around it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_FORBIDDEN = (
    "_thread.start",
    "ctypes.",
    "gc.get_",  # would find the frames of the harness
    "os.exec",
    "os.fork",
    "os.kill",
    "os.posix_spawn",
    "os.ptrace",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "resource.",
    "signal.pthread_kill",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostby",
    "socket.sendto",
    "subprocess.",
    "sys._current_",
    "sys.addaudithook",
    "sys.monitoring",
)
_CHANGES_PATHS = frozenset(
    f"os.{name}"
    for name in (
        "chflags chmod chown link lockf mkdir mkfifo mknod remove removexattr rename rmdir "
        "setxattr symlink truncate unlink utime"
    ).split()
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOCAL_FAMILY = 1  # AF_UNIX: asyncio makes itself a pair of these


def watch(directory: str, stop: Callable[[str], None]) -> None:
    """Installs the hook for the rest of the process's life.

    Args:
      directory: The only directory in which files may be changed.
      stop: Called with a description of a forbidden act; must not return.
    """
    realpath, is_dir_of = os.path.realpath, directory.rstrip("/") + "/"
    # The harness has used it already; an import of it by others is to fail as if it were missing.
    for name in ("ctypes", "_ctypes"):
        sys.modules[name] = None  # type: ignore[assignment]

    def is_inside(path: Any) -> bool:
        if isinstance(path, int):
            return True  # a descriptor: whoever opened it was checked then
        real = realpath(os.fsdecode(path))
        return real == directory or real.startswith(is_dir_of)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)):
                if isinstance(flags, int) and flags & _WRITES and not is_inside(path):
                    stop(f"opened {path!r} for writing")
                if realpath(os.fsdecode(path)).startswith("/proc"):
                    stop(f"opened {path!r}")
        elif event in _CHANGES_PATHS:
            paths = [item for item in arguments[:2] if isinstance(item, (str, bytes))]
            if not all(is_inside(path) for path in paths):
                stop(f"called {event} on {paths!r}")
        elif event == "import":
            if arguments[0] in ("ctypes", "_ctypes") and sys.modules.get(arguments[0], sys):
                stop("imported ctypes")
        elif event == "socket.__new__":
            if arguments[1] not in (_LOCAL_FAMILY, -1):
                stop("made a socket")
        elif event.startswith(_FORBIDDEN):
            stop(f"called {event}")

    sys.addaudithook(hook)
