"""Several command lines of a program, in forks of one process that has imported it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORKS = """
import importlib, json, os, sys, tempfile, traceback
from absl import app
from experiments import command_line
name, schema = sys.argv[1:]
program = importlib.import_module(f"experiments.{name}")
schema = importlib.import_module(f"experiments.{schema}").SCHEMA
outcomes = []
for arguments in json.load(sys.stdin):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 99
            try:
                sys.argv = [name, *arguments]  # ml_collections looks here as well
                app.run(program.main, flags_parser=command_line.parser(schema))
            except SystemExit as end:
                status = end.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        outcomes.append((status, out.read().decode(), err.read().decode()))
print(json.dumps(outcomes))
"""


def run_each(
    cases: Sequence[list[str]],
    *,
    program: str,
    schema: str,
    folder: Path,
    environment: Mapping[str, str],
) -> list[tuple[int, str, str]]:
    """Runs command lines one after the other; (exit status, stdout, stderr) of each.

    Args:
      cases: Arguments.
      program: Module in `experiments` with `main`.
      schema: Module in `experiments` with the `SCHEMA` of its configuration.
      folder: Where it runs.
      environment: Of its process.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, program, schema],
        cwd=folder,
        env=environment,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return [tuple(outcome) for outcome in json.loads(done.stdout)]
