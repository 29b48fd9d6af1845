"""Runs a program and its tests in a confined process: `python -I run.py`, told what by its input.

Standard input is a JSON object: `sources` (texts run one after the other in one module), `secret`,
`report` (a descriptor), `directory` and `limits`. The report that all sources ran to their end is a
line with the secret, which nothing in the program's own module refers to; so neither the exit
status nor anything printed can pass for it.
"""

from __future__ import annotations

import _thread
import importlib.util
import json
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any, NoReturn

_STACK_BYTES = 64 << 20
_LONGEST_DETAIL = 300


def _sibling(name: str) -> types.ModuleType:
    """Loads a file of this directory, which `python -I` rightly keeps off the search path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _execute(codes: list[types.CodeType], start: Any, end: Any, outcome: list[str]) -> None:
    """Runs the sources in a module of their own; `outcome` is empty if none of them failed."""
    start.acquire()
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # dataclasses and pickle look classes up by module
    try:
        for code in codes:
            exec(code, module.__dict__)
    except SystemExit as error:
        outcome.append(f"SystemExit({error.code!r}) before the tests ended")
    except BaseException as error:
        outcome.append(_describe(error))
    end.release()


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL]
    except BaseException:  # __str__ may be the program's own
        return type(error).__name__


def main() -> NoReturn:
    """Confines the process, runs the sources and reports."""
    order = json.load(sys.stdin)
    secret, report = order["secret"], order["report"]
    # Bound here because the program can replace the attributes of the modules.
    write, leave = os.write, os._exit
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)

    def stop(act: str) -> NoReturn:
        write(report, f"\nstopped {act[:_LONGEST_DETAIL]!r}\n".encode(errors="replace"))
        leave(1)

    def say(outcome: list[str]) -> NoReturn:
        text = f"failed {outcome[0]!r}" if outcome else f"passed {secret} {' '.join(taken)}"
        write(report, f"\n{text}\n".encode(errors="replace"))
        leave(0)

    isolation, landlock, watching = map(_sibling, ("isolation", "landlock", "watch"))
    isolation.limit_resources(order["limits"])
    taken = isolation.isolate(order["directory"], order["limits"]["disk_bytes"], landlock.restrict)
    try:
        codes = [
            compile(source, f"<{name}>", "exec", dont_inherit=True)
            for name, source in order["sources"]
        ]
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        say([_describe(error)])
    del order
    # The thread keeps this function's frame, and so the secret, out of the program's stack.
    start, end, outcome = _thread.allocate_lock(), _thread.allocate_lock(), list[str]()
    start.acquire()
    end.acquire()
    threading.stack_size(_STACK_BYTES)
    wait = end.acquire
    _thread.start_new_thread(_execute, (codes, start, end, outcome))
    isolation.forbid_processes()
    watching.watch(os.path.realpath(os.getcwd()), stop)
    start.release()
    wait()
    say(outcome)


if __name__ == "__main__":
    main()
