"""Interleaved timing and receipts, shared by all benchmarks.

The machine may be shared and noisy. So all arms are run in turn, many times, in one process, and
only ratios of medians are quoted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from asd_jax.evaluation.machine import cpu_model, num_cores

Arm = Callable[[], Any]


def interleave(arms: Mapping[str, Arm], *, repeats: int) -> dict[str, list[float]]:
    """Runs every arm once to warm up, then all of them in turn, `repeats` times.

    Args:
      arms: What to run; each returns arrays, which are waited for.
      repeats: Timed runs of each arm.

    Returns:
      Seconds of each run, by arm.
    """
    for arm in arms.values():
        jax.block_until_ready(arm())
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(repeats):
        # Rotated, so that no arm always follows the same neighbour.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            jax.block_until_ready(arms[name]())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median(samples: list[float]) -> float:
    """Returns the median in the unit of the samples."""
    return statistics.median(samples)


def ratio(seconds: Mapping[str, list[float]], over: str, under: str) -> float:
    """Returns the ratio of the medians of two arms of one interleaved run."""
    return median(seconds[over]) / median(seconds[under])


def summarise(seconds: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Returns minimum, median and maximum of each arm in milliseconds."""
    return {
        name: {
            "min_ms": round(1e3 * min(samples), 3),
            "median_ms": round(1e3 * median(samples), 3),
            "max_ms": round(1e3 * max(samples), 3),
            "runs": len(samples),
        }
        for name, samples in seconds.items()
    }


def figure(
    name: str, value: float, *, at_most: float | None = None, at_least: float | None = None
) -> dict[str, Any]:
    """Returns a figure with its aim and whether it is met, and prints it."""
    is_met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    aim = f"<= {at_most}" if at_most is not None else f">= {at_least}"
    print(f"{name:<58} {value:8.4f}   aim {aim:<9} {'met' if is_met else 'NOT MET'}", flush=True)
    return {"figure": name, "value": round(value, 5), "aim": aim, "met": is_met}


def receipt() -> dict[str, Any]:
    """Returns what a reader needs to repeat the run: command, commit, versions and device."""
    module = sys.modules["__main__"].__spec__
    command = ["python", "-m", module.name if module else "?", *sys.argv[1:]]
    packages = ("jax", "jaxlib", "flax", "numpy", "torch", "transformers")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = jax.devices()[0]
    return {
        "command": shlex.join(command),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": versions,
        "device": {
            "backend": device.platform,
            "kind": device.device_kind,
            "cpu": cpu_model(),
            "cores": num_cores(),
        },
    }


def write_json(path: str | None, report: Mapping[str, Any]) -> None:
    """Writes the report where asked and prints where."""
    if path is None:
        return
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {target}")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns the argument parser that all benchmarks start from."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--output", help="JSON file to write")
    arguments.add_argument("--repeats", type=int, default=15, help="timed runs of each arm")
    return arguments


def _commit() -> str | None:
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
    )
    return run.stdout.strip() or None
