"""How much memory a program has needed."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Returns the most memory that this process has held at once, in bytes."""
    try:
        # `getrusage` would tell the parent's peak, if that was higher when it started this process.
        status = Path("/proc/self/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    except (OSError, IndexError):  # not Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
