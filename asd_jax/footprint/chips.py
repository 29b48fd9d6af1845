"""Accelerators by name and how much memory one chip has.

Vendors print "GB". It is read as 10^9 bytes, as the letters say. Where the hardware counts in
2^30, up to 7 % more are there, of which the driver and the runtime take a part; to plan on the
smaller number is the safe error.
"""

from __future__ import annotations

import dataclasses

GB = 10**9


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator.

    Attributes:
      name: As in the report and on the command line.
      memory: High-bandwidth memory of one chip, bytes.
      source: Where the vendor says so.
    """

    name: str
    memory: int
    source: str


_TPU = "https://docs.cloud.google.com/tpu/docs"
_NVIDIA = "https://www.nvidia.com/en-us/data-center"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v5e", 16 * GB, f"{_TPU}/v5e"),
        Chip("v6e", 32 * GB, f"{_TPU}/v6e"),
        Chip("A100", 80 * GB, f"{_NVIDIA}/a100"),
        Chip("H100", 80 * GB, f"{_NVIDIA}/h100"),
        Chip("v5p", 95 * GB, f"{_TPU}/v5p"),
        Chip("H200", 141 * GB, f"{_NVIDIA}/h200"),
    )
}
