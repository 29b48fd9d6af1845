"""Runs a program with its tests in a process that can do no harm, and says whether it passed.

Enforced in every case, by the kernel: limits on memory, processor time, file size and wall time; no
further process or thread; a session of its own, killed as a whole; a clean environment; no input,
no output. (Root is exempt from the limit on processes: where it cannot be given another user id,
only the audit hook stops them.)

Enforced where the kernel grants namespaces (to root, or to any user where unprivileged user
namespaces are on): no network, and a root directory that holds Python, the system's libraries and a
small writable file system, without /proc and without the files of the machine. A grader that is
root gives the process a user id of its own. Where there are no namespaces, Landlock keeps the
process from all other files, from TCP and from signalling others, as far as the kernel's version
goes; the rest is left to the audit hook of `confined.watch`. `enforced` tells which it is.

Not enforced: the tests share the interpreter with the program, so a program written against this
very harness can walk its frames and forge the report, and one that returns an object equal to
everything passes an equality test. Neither happens by accident. An answer that needs threads,
processes, native code or packages that are not installed fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_RUN = Path(__file__).with_name("confined") / "run.py"
_LONGEST_REPORT = 1 << 16
# Nothing of the caller's environment: it may hold keys. Threads of numerical libraries would fail.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
      wall_seconds: Time from its start, in seconds.
      cpu_seconds: Processor time, in whole seconds.
      memory_bytes: Address space, the interpreter's own included, in bytes.
      disk_bytes: Size of one file, and of all its files where it has its own file system, in bytes.
    """

    wall_seconds: float = 30.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    disk_bytes: int = 16 << 20


@dataclasses.dataclass(frozen=True)
class Run:
    """How a program ended.

    Attributes:
      is_passed: Whether all its sources ran to their end, proven by the harness's secret.
      detail: "passed", or what went wrong, in words.
      enforced: What the kernel took away: of "network" (all of it), "tcp", "files" (all but Python
        and its own directory), "signals" (to others), "user" (a user id of its own) and
        "privileges"; empty unless it passed.
    """

    is_passed: bool
    detail: str
    enforced: tuple[str, ...] = ()


def run_confined(sources: Sequence[tuple[str, str]], limits: Limits | None = None) -> Run:
    """Runs Python sources one after the other in one module of a confined process.

    Args:
      sources: Name and text of each source. They are compiled apart, so an unfinished string in one
        cannot swallow the next.
      limits: What they may use; the defaults of `Limits` if None.

    Returns:
      A `Run`; the sources' failures are reported there, never raised.

    Raises:
      OSError: No process can be started, or no temporary directory made.
    """
    limits = limits or Limits()
    secret = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="asd_jax_", ignore_cleanup_errors=True) as directory,
        tempfile.TemporaryFile() as order,
    ):
        reading, writing = os.pipe()
        try:
            request = {
                "sources": [list(source) for source in sources],
                "secret": secret,
                "report": writing,
                "directory": os.path.realpath(directory),
                "limits": dataclasses.asdict(limits),
            }
            order.write(json.dumps(request).encode())
            order.seek(0)
            process = subprocess.Popen(
                (sys.executable, "-I", "-B", str(_RUN)),
                stdin=order,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                cwd=directory,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            report, is_late = _read(reading, time.monotonic() + limits.wall_seconds)
        finally:
            os.close(reading)
            status = _end(process)
    return _judge(report.decode(errors="replace"), secret, status, limits, is_late=is_late)


def enforced() -> tuple[str, ...]:
    """Returns what the kernel takes away from programs on this machine, as in `Run.enforced`.

    Raises:
      RuntimeError: Not even an empty program runs, so nothing could be graded.
    """
    run = run_confined([("empty", "")])
    if not run.is_passed:
        raise RuntimeError(f"the sandbox cannot run an empty program: {run.detail}")
    return run.enforced


def _read(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Reads until the end, the deadline or the longest report; tells whether it was too late."""
    report = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(report) < _LONGEST_REPORT:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return report, True
            part = os.read(descriptor, 4096)
            if not part:
                break
            report += part
    return report, False


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kills the process and all of its session that is left, and returns the exit status."""
    # It closes the report just before it ends by itself; its own status says more than SIGKILL.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _judge(report: str, secret: str, status: int, limits: Limits, *, is_late: bool) -> Run:
    for line in report.splitlines():
        word, _, rest = line.partition(" ")
        proof, *taken = rest.split() or [""]
        if word == "passed" and secrets.compare_digest(proof.encode(), secret.encode()):
            return Run(True, "passed", tuple(taken))
    if is_late:
        return Run(False, f"over the limit of {limits.wall_seconds:g} s")
    if status == -signal.SIGXCPU:
        return Run(False, f"over the limit of {limits.cpu_seconds} s of processor time")
    for line in report.splitlines():
        if line.startswith(("failed ", "stopped ")):
            return Run(False, line)
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return Run(False, f"killed by {name} before the tests ended")
    return Run(False, f"ended with status {status} before the tests did")
