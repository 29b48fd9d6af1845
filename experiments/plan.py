"""Says whether a target with a drafter fits a chip, without an accelerator and without weights.

    python -m experiments.plan --config=experiments/configs/plan_qwen3_8b_dspark.py \\
        --config.chip=v5e --config.mesh.data=1 --config.mesh.model=8

Shows the bytes on each device (weights, caches, logits, temporaries), what the devices exchange in
a round, and whether that fits. The loop is compiled for as many host devices as the mesh has, which
takes a minute or two for an 8B target; `--config.compile=False` leaves that and the temporaries
out. `--config.output=FILE` also writes everything as JSON. docs/planning.md says how to read it;
`--help` lists all fields.

Exit status: 0 shown, whether it fits or not; 2 the configuration cannot be used.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import jax
from absl import app

from asd_jax.footprint import CHIPS, Chip, Footprint, measure
from asd_jax.sharding import make_mesh
from experiments import command_line, plan_config
from experiments.fields import ConfigError
from experiments.memory import peak_bytes
from experiments.plan_config import PlanConfig
from experiments.plan_table import PlanTable

_DONE, _UNUSABLE = 0, command_line.UNUSABLE


def run(config: PlanConfig, name: str) -> int:
    """Makes a plan and returns the exit status.

    Args:
      config: What to plan.
      name: The configuration's name, for the title.

    Raises:
      ConfigError: The target, the drafter and the mesh do not go together.
    """
    output = None if config.output is None else Path(config.output)
    if output is not None and output.exists():
        raise ConfigError(f"output: got {str(output)!r}, which exists; it is never overwritten")
    table = PlanTable()
    start = time.perf_counter()
    _use_host_devices(config.mesh.data * config.mesh.model)
    try:
        footprint = measure(
            config.target,
            config.drafter.family,
            config.drafter.config,
            config.workload,
            make_mesh(data=config.mesh.data, model=config.mesh.model),
            dtype=config.dtype,
            is_compiled=config.compile,
            on_progress=table.progress,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    chips = list(CHIPS.values()) if config.chip == "all" else [CHIPS[config.chip]]
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    table.show(name, footprint, chips, config.headroom, seconds, peak)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        record = _record(config, footprint, chips, seconds, peak)
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        table.line("written", str(output))
    return _DONE


def _use_host_devices(count: int) -> None:
    """Makes the CPU stand for so many devices; must come before JAX looks for any."""
    flags_of_xla = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = re.sub(
        r"--xla_force_host_platform_device_count=\d+", "", flags_of_xla
    )  # JAX refuses to be told twice
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def _record(
    config: PlanConfig, footprint: Footprint, chips: list[Chip], seconds: float, peak: int
) -> dict[str, Any]:
    headroom = config.headroom
    return {
        "config": dataclasses.asdict(config),
        "footprint": footprint.to_dict(),
        "chips": {
            chip.name: {
                "memory": chip.memory,
                "source": chip.source,
                "fits": footprint.fits(chip, headroom),
            }
            for chip in chips
        },
        "jax": jax.__version__,
        "seconds": seconds,
        "peak_memory_of_planning_bytes": peak,
    }


def main(argv: list[str]) -> int:
    """Plans what the command line says and returns the exit status."""
    del argv
    try:
        return run(*command_line.checked_config(plan_config.SCHEMA))
    except (ConfigError, OSError) as error:
        command_line.complain(str(error))
        return _UNUSABLE


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(plan_config.SCHEMA))
