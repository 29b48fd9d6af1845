"""Compares the final answers of competition problems: LaTeX that can be spelt in many ways."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from asd_jax.evaluation.grading.boxed import boxed
from asd_jax.evaluation.grading.grade import Grade

_WORKER = Path(__file__).with_name("confined") / "math_worker.py"
_START_SECONDS = 120.0  # importing SymPy on a busy machine
# A final answer is a line. Longer boxes are derivations, which take SymPy minutes to reject.
_LONGEST = 2000


class GraderError(RuntimeError):
    """Answers cannot be compared at all, whatever they are."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Whether two formulas mean the same.

    Attributes:
      is_equal: Whether they do; False also where it could not be found out.
      detail: How it was found out, in words.
    """

    is_equal: bool
    detail: str


class FormulaComparer:
    """Compares formulas in a worker process that is replaced when it hangs or dies.

    Threads may share it; they wait for each other. Use it as a context manager, or call `close`.
    """

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> FormulaComparer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def compare(self, reference: str, answer: str) -> Comparison:
        """Compares the insides of two boxes.

        Args:
          reference: The right one.
          answer: The model's.

        Raises:
          GraderError: The package math-verify is missing, or no worker can be started.
        """
        if "".join(reference.split()) == "".join(answer.split()):
            return Comparison(True, "the same text")
        if len(answer) > _LONGEST:
            return Comparison(False, f"longer than {_LONGEST} characters")
        with self._lock:
            self._start()
            reply = self._ask([reference, answer])
            if reply is None:
                self._stop()
                return Comparison(False, f"not compared within {self._seconds:g} s, or crashed")
        if "error" in reply:
            return Comparison(False, f"not compared: {reply['error']}")
        return Comparison(reply["is_equal"], "compared by math_verify")

    def close(self) -> None:
        """Ends the worker; a later comparison starts another."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        self._directory = tempfile.TemporaryDirectory(prefix="asd_jax_", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            (sys.executable, "-I", str(_WORKER), os.path.realpath(self._directory.name)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._directory.name,
            env={"LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        reply = self._read(_START_SECONDS)
        if reply is None or "ready" not in reply:
            self._stop()
            missing = f": {reply['missing']}" if reply and "missing" in reply else ""
            raise GraderError(
                f"the worker that compares formulas does not start{missing}; it needs the package "
                "math-verify: pip install 'asd_jax[evaluation]'"
            )

    def _ask(self, request: list[str]) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        return self._read(self._seconds)

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """Returns the next line of the worker, or None at its end or after `seconds`."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                # Not `readline`, which would wait for the rest of a line past the deadline.
                part = os.read(self._process.stdout.fileno(), 4096)
                if not part:
                    return None
                line += part
        reply = json.loads(line)
        return reply if isinstance(reply, dict) else None

    def _stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def grade_formula(answer: str, reference: str, comparer: FormulaComparer | None = None) -> Grade:
    r"""Compares the last \boxed{} of an answer with the right formula.

    Args:
      answer: What the model wrote.
      reference: The right formula, without a box.
      comparer: Whose worker to use; one shared by the whole process if None.

    Raises:
      GraderError: As `FormulaComparer.compare`.
    """
    boxes = boxed(answer)
    if not boxes:
        return Grade(False, None, "no box")
    formula = boxes[-1].strip()
    comparison = (comparer or _shared_comparer()).compare(reference, formula)
    return Grade(comparison.is_equal, formula, comparison.detail)


@functools.cache
def _shared_comparer() -> FormulaComparer:
    comparer = FormulaComparer()
    atexit.register(comparer.close)
    return comparer
