"""Freezes controls: from now on nobody changes them, and they may be audited.

    python -m experiments.freeze outputs/calibration/controls.json --output frozen.json

A candidate is frozen as it is, fingerprint included. A discovery is refused: the best of a search
has to be confirmed on other examples first.

Exit status: 0 frozen; 2 a file cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asd_jax.evaluation.controls_file import ControlsError, read_controls, write_controls
from experiments.command_line import UNUSABLE, complain


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("controls", help="controls.json of experiments.calibrate")
    arguments.add_argument("--output", required=True, help="where the frozen controls go")
    return arguments


def freeze(source: str, output: str) -> str:
    """Freezes a controls file and returns its fingerprint.

    Args:
      source: The file.
      output: Where they go; other controls that are there are left alone.

    Raises:
      ControlsError: They are a discovery, or the output has other controls.
      OSError: A file cannot be read or written.
    """
    frozen = read_controls(source).frozen()
    if Path(output).exists() and read_controls(output) != frozen:
        raise ControlsError(f"output: {output} has other controls; take another file")
    write_controls(output, frozen)
    return frozen.fingerprint


def main(argv: Sequence[str] | None = None) -> int:
    """Freezes what the command line says and returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        fingerprint = freeze(arguments.controls, arguments.output)
    except (ControlsError, OSError) as error:
        complain(str(error))
        return UNUSABLE
    print(f"{arguments.output}: frozen, fingerprint {fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
