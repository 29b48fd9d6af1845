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

import json
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging

from asd_jax.footprint import CHIPS, Chip, Footprint, measure
from asd_jax.sharding import make_mesh
from experiments import command_line, plan_config
from experiments.config import ConfigError
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
    output = None if config["output"] is None else Path(config["output"])
    if output is not None and output.exists():
        raise ConfigError(f"output: got {str(output)!r}, which exists; it is never overwritten")
    table = PlanTable()
    start = time.perf_counter()
    _use_host_devices(config["mesh.data"] * config["mesh.model"])
    try:
        footprint = measure(
            config.target,
            config["drafter.family"],
            config.drafter,
            config.workload,
            make_mesh(data=config["mesh.data"], model=config["mesh.model"]),
            dtype=config["dtype"],
            is_compiled=config["compile"],
            on_progress=table.progress,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    chips = list(CHIPS.values()) if config["chip"] == "all" else [CHIPS[config["chip"]]]
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    table.show(name, footprint, chips, config["headroom"], seconds, peak)
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
    headroom = config["headroom"]
    return {
        "config": config.to_dict(),
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


def _parse(argv: list[str]) -> list[str]:
    """Parses the command line, with messages in the words of the configuration."""
    if any(argument in ("-h", "-help", "--help", "--helpfull") for argument in argv[1:]):
        print(__doc__)
        for name, field in plan_config.FIELDS.items():
            print(f"  --config.{name}={field.default}\n      {field.about} ({field.allowed})")
        sys.exit(0)
    for argument in argv[1:]:
        if argument.lstrip("-").startswith("config."):
            name = argument.lstrip("-").split("=")[0].removeprefix("config.")
            if (told := plan_config.unknown_field(name)) is not None:
                raise ConfigError(told)
    try:
        rest = flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        flag, _, reason = str(error).partition(": ")
        name, _, value = flag.removeprefix("flag --config.").partition("=")
        if flag.startswith("flag --config."):
            reason = f"{name}: got {value!r}, allowed is {plan_config.describe(name)}"
        raise ConfigError(reason or flag) from error
    except flags.Error as error:
        raise ConfigError(str(error)) from error
    if flags.FLAGS.config is None:
        raise ConfigError("--config=FILE is missing, such as experiments/configs/plan_NAME.py")
    if len(rest) > 1:
        raise ConfigError(f"got {rest[1]!r}, allowed are only flags such as --config.FIELD=value")
    return rest


def parse_or_exit(argv: list[str]) -> list[str]:
    """Parses the command line for `absl.app.run`; whatever is wrong with it ends with status 2.

    Args:
      argv: The program's name and its arguments.

    Returns:
      The program's name, as everything else has been understood.
    """
    try:
        return _parse(argv)
    except ConfigError as error:
        command_line.complain(str(error))
    except Exception as error:  # a configuration is a program and may raise anything
        command_line.complain(f"the configuration cannot be loaded: {error}")
    sys.exit(_UNUSABLE)


def main(argv: list[str]) -> int:
    """Plans what the command line says and returns the exit status."""
    del argv
    logging.set_verbosity(logging.WARNING)  # absl would list the backends that JAX lacks
    flag: Any = flags.FLAGS["config"]
    try:
        return run(plan_config.from_config_dict(flag.value), Path(flag.config_filename).stem)
    except (ConfigError, OSError) as error:
        command_line.complain(str(error))
        return _UNUSABLE


if __name__ == "__main__":
    app.run(main, flags_parser=parse_or_exit)
