"""Compares formulas: `python -I math_worker.py DIRECTORY`, a JSON line in, a JSON line out.

A process of its own, because `math_verify` sets alarms, and because one line of LaTeX can keep
SymPy busy for ever or fill the memory. It is confined too, as SymPy evaluates what it parses.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

_LIMITS = {"memory_bytes": 4 << 30, "cpu_seconds": 1 << 20, "disk_bytes": 1 << 20}


def is_equal(reference: str, answer: str) -> bool:
    """Returns whether two pieces of LaTeX (the insides of a box) mean the same."""
    from math_verify import parse, verify  # type: ignore[import,unused-ignore]

    # 0 is no limit: its own are alarms, which SymPy can swallow. The caller's limit is what acts.
    right = parse(f"\\boxed{{{reference}}}", parsing_timeout=0)
    ours = parse(f"\\boxed{{{answer}}}", parsing_timeout=0)
    return bool(verify(right, ours, timeout_seconds=0))


def _confine(directory: str) -> None:
    isolation, landlock = _sibling("isolation"), _sibling("landlock")
    isolation.limit_resources(_LIMITS)
    isolation.isolate(directory, _LIMITS["disk_bytes"], landlock.restrict)
    isolation.forbid_processes()


def _sibling(name: str) -> types.ModuleType:
    """Loads a file of this directory, which `python -I` rightly keeps off the search path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Serves requests `[reference, answer]`; an error of the comparison counts as unequal."""
    replies = sys.stdout
    sys.stdout = sys.stderr  # so that a library that prints does not garble the replies
    try:
        is_equal("1", "1")  # imports and builds the grammar before the first time limit runs
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=replies, flush=True)
        return
    _confine(sys.argv[1])
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        reply: dict[str, object]
        try:
            reply = {"is_equal": is_equal(*json.loads(line))}
        except Exception as error:  # SymPy raises anything on nonsense
            reply = {"is_equal": False, "error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
