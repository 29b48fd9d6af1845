"""Landlock: what any process may give up by itself, also in a container that grants no namespaces.

https://docs.kernel.org/userspace-api/landlock.html; the kernel's version of the interface decides
how much of it there is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read files, read directories
_FIRST_WITH = {"tcp": 4, "signals": 6}
_CONNECT_AND_BIND, _ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11


def _file_rights(version: int) -> int:
    """Returns all rights to files that a version knows, as bits."""
    count = 13 + (version >= 2) + (version >= 3) + (version >= 5)
    return (1 << count) - 1


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("rights", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def restrict(libc: ctypes.CDLL, readable: Iterable[Path], writable: str) -> list[str]:
    """Gives up all files but some, and TCP and signals to others where the kernel can.

    Args:
      libc: The C library. The process must have renounced new privileges before.
      readable: Directories whose files stay readable.
      writable: The directory in which everything stays allowed.

    Returns:
      Of "files", "tcp" and "signals" those given up; nothing without Landlock.

    Raises:
      OSError: The kernel has Landlock and refuses all the same.
    """
    version = libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return []
    rights = _file_rights(version)
    given_up = [name for name, first in _FIRST_WITH.items() if version >= first]
    ruleset = _Ruleset(
        rights,
        _CONNECT_AND_BIND if "tcp" in given_up else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if "signals" in given_up else 0,
    )
    # An older kernel takes a longer structure whose unknown part is zero.
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _checked(libc.syscall(ctypes.c_long(_CREATE_RULESET), ctypes.byref(ruleset), size, 0))
    try:
        allowed = [(str(path), _READ) for path in readable] + [(writable, rights)]
        for path, kept in allowed:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = ctypes.byref(_PathRule(kept & rights, parent))
                _checked(libc.syscall(ctypes.c_long(_ADD_RULE), rules, _PATH_BENEATH, rule, 0))
            finally:
                os.close(parent)
        _checked(libc.syscall(ctypes.c_long(_RESTRICT_SELF), rules, 0))
    finally:
        os.close(rules)
    return ["files", *given_up]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
