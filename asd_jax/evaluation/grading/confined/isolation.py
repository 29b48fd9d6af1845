"""What the kernel enforces on a process before it runs code of unknown intent.

Runs in the confined process under `python -I`, so it imports the standard library only. Every
measure is taken on its own and named in what `isolate` returns, because kernels and containers
differ in which of them they grant.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_MOUNT_SETATTR = 442  # the same number on every architecture, and no wrapper in older C libraries
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9
_CAPABILITY_VERSION_3 = 0x2008_0522
# Far above the ids that systems give out. A user id of its own makes the limit on processes count
# this process only, and keeps two confined processes from signalling each other.
_FIRST_UID = 0x6000_0000
_WORK = "confined-work"

Restrict = Callable[[ctypes.CDLL, Iterable[Path], str], list[str]]


def isolate(directory: str, disk_bytes: int, restrict: Restrict | None = None) -> list[str]:
    """Takes away the network, the file system and the privileges, as far as the kernel allows.

    Must be called while the process has one thread. Afterwards the working directory is the only
    place that can be written: an own small file system, or `directory` where mounting is refused.

    Args:
      directory: An empty directory made for this process.
      disk_bytes: Size of the file system that can be written, in bytes.
      restrict: `landlock.restrict`, the second choice where mounting is refused.

    Returns:
      The measures taken, of "network", "files", "tcp", "signals", "user", "privileges".
    """
    taken = []
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    uid, gid = os.geteuid(), os.getegid()
    if libc is not None:
        own_user = 0 if uid == 0 else _CLONE_NEWUSER
        with contextlib.suppress(OSError):
            _call(libc.unshare, own_user | _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC)
            taken.append("network")
            if own_user:
                _map_user(uid, gid)
            _enter_small_root(libc, directory, disk_bytes)
            taken.append("files")
    is_mounted = "files" in taken
    if not is_mounted:
        os.chdir(directory)
    if uid == 0 and (is_mounted or _is_open_to_all(sys.base_prefix)):
        own = _FIRST_UID + os.getpid() % 0x1000_0000
        with contextlib.suppress(OSError):
            if not is_mounted:
                os.chown(directory, own, own)
            os.setgroups([])
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
            taken.append("user")
    if libc is not None:
        with contextlib.suppress(OSError):
            _drop_capabilities(libc)
            _call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            taken.append("privileges")
            if restrict is not None and not is_mounted:
                taken += restrict(libc, _needed(), directory)
        with contextlib.suppress(OSError):
            # Only now: a change of user clears it. The process is not to outlive the grader.
            _call(libc.prctl, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    return taken


def limit_resources(limits: dict[str, int]) -> None:
    """Sets hard limits on memory, processor time, file size, descriptors and core dumps.

    Args:
      limits: Bytes or seconds by the names "memory_bytes", "cpu_seconds", "disk_bytes".
    """
    seconds = limits["cpu_seconds"]
    # SIGXCPU at the first, which says why, and SIGKILL at the second.
    _limit("RLIMIT_CPU", seconds, seconds + 1)
    for name, value in (
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_FSIZE", limits["disk_bytes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        _limit(name, value, value)


def forbid_processes() -> None:
    """Lets the process start no further process or thread."""
    _limit("RLIMIT_NPROC", 0, 0)


def _limit(name: str, soft: int, hard: int) -> None:
    kind = getattr(resource, name, None)
    if kind is None:
        return
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    # Some systems refuse a limit on address space; the wall limit still holds there.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (soft, hard))


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _map_user(uid: int, gid: int) -> None:
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        Path("/proc/self", name).write_text(line)


def _enter_small_root(libc: ctypes.CDLL, directory: str, disk_bytes: int) -> None:
    """Makes a root of Python and the system's libraries, read-only, and moves into it."""
    _call(libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    flags = _MS_NOSUID | _MS_NODEV
    _call(libc.mount, b"tmpfs", directory.encode(), b"tmpfs", flags, b"size=1m,mode=755")
    # Not /tmp itself: Python may lie below it, and this would hide it.
    work = Path(directory, _WORK)
    work.mkdir()
    needed = list(_needed())
    if not any(source.is_relative_to("/tmp") for source in needed):
        Path(directory, "tmp").symlink_to(f"/{_WORK}")
    for source in needed:
        target = Path(directory, source.relative_to("/"))
        target.mkdir(parents=True, exist_ok=True)
        _call(libc.mount, bytes(source), bytes(target), None, _MS_BIND | _MS_REC, None)
    _set_attributes(
        libc, directory, set_bits=_ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV, clear_bits=0
    )
    options = f"size={disk_bytes},nr_inodes=4096,mode=777".encode()
    _call(libc.mount, b"tmpfs", bytes(work), b"tmpfs", flags, options)
    os.chroot(directory)
    os.chdir(f"/{_WORK}")


def _needed() -> Iterator[Path]:
    """Yields the directories that Python reads after its start, none inside another."""
    wanted = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/lib", "/lib64"]
    wanted += [sys.base_prefix, sys.base_exec_prefix, sys.prefix, *sys.path]
    yielded: list[Path] = []
    for path in sorted({Path(name) for name in wanted if name.startswith("/")}):
        if path.is_dir() and not any(path.is_relative_to(other) for other in yielded):
            yielded.append(path)
            yield path


def _set_attributes(libc: ctypes.CDLL, path: str, *, set_bits: int, clear_bits: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(set_bits, clear_bits, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call(
        libc.syscall,
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        size,
    )


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _call(libc.capset, ctypes.byref(header), ctypes.byref(nothing))


def _is_open_to_all(path: str) -> bool:
    """Whether any user may go through every directory of a path."""
    real = Path(path).resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents))
