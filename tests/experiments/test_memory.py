"""The peak is this process's own, whatever its parent held."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from experiments.memory import peak_bytes
from tests.experiments.conftest import REPOSITORY

PROGRAM = "from experiments.memory import peak_bytes; print(peak_bytes())"


def test_the_peak_stays_when_memory_is_given_back_and_is_not_inherited():
    before = peak_bytes()
    block = np.ones(256 << 20, np.uint8)
    assert peak_bytes() > 0.95 * max(before, block.nbytes)
    held = peak_bytes()
    del block
    assert peak_bytes() > 0.95 * held  # the kernel counts pages in batches
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(child.stdout) < 128 << 20
