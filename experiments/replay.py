"""Checks the ledgers of an output file: every answer is scored again by the target alone.

    python -m experiments.replay outputs/NAME.jsonl

Each token of each answer has to be the target's own choice given the tokens before it, or a listed
exception whose regret, gate, cap and charge hold; the ledger has to add up. The decode loop and the
verifier take no part in it. The run needs `trace`. Findings go to outputs/NAME.replay.jsonl, a line
for each answer; started again it goes on where it was.

Exit status: 0 every claim holds; 1 some do not; 2 the file, its prompts or its target cannot be
used; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.evaluation.plan import Request, make_plan
from asd_jax.evaluation.prompts import PromptError, read_prompts
from asd_jax.evaluation.records import OutputError, Writer
from asd_jax.evaluation.replay import Rescorer, check_claim
from asd_jax.evaluation.replay.claims import (
    Output,
    ReplayError,
    limits_of,
    read_output,
    requests_of,
    rescore_row,
    settings_of,
)
from asd_jax.load import LoadedTarget, load_target

_DONE, _FOUND, _UNUSABLE, _INTERRUPTED = 0, 1, 2, 130
# Rounding of one forward against another, by the type of the weights; logits.
_TOLERANCE = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("output", help="output file of experiments.decode, made with trace")
    arguments.add_argument("--prompts", help="prompt file, where it is not where the run found it")
    arguments.add_argument("--target", help="target, where it is not where the run found it")
    arguments.add_argument("--tolerance", type=float, help="logits that two forwards may differ by")
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Replays a file and returns the exit status.

    Raises:
      ReplayError: The file, its prompts or its target do not belong together.
    """
    output = read_output(arguments.output)
    prompts = read_prompts(arguments.prompts or output.header["prompts"]["name"])
    _require_same("prompts", output.header["prompts"]["digest"], prompts.digest)
    loaded = load_target(
        arguments.target or output.header["target"]["name"], dtype=_dtype(output.header)
    )
    _require_same("target", output.header["target"]["digest"], loaded.source.digest())
    plan = make_plan(
        prompts.records,
        loaded.tokenizer,
        settings_of(output.header),
        vocab_size=loaded.target.vocab_size,
        context_length=loaded.target.context_length,
    )
    tolerance = arguments.tolerance
    if tolerance is None:
        leaf = jax.tree.leaves(loaded.target.params)[0]
        tolerance = _TOLERANCE[str(leaf.dtype)]
    path = Path(arguments.output)
    writer = Writer(path.with_suffix(".replay.jsonl"), resume=True)
    try:
        header = dict(output.header)
        writer.start({**header, "config": {**header["config"], "tolerance": tolerance}})
        checked = [*writer.resumed_rows]
        begun, total = time.perf_counter(), len(output.rows)
        for entry in _check_rows(output, loaded, requests_of(plan), tolerance, writer.done):
            writer.write([entry])
            checked.append(entry)
            pace = (time.perf_counter() - begun) / (len(checked) - len(writer.resumed_rows))
            print(
                f"[{len(checked)}/{total}] {entry['arm']} {entry['id']}: "
                f"{len(entry['findings'])} findings, {pace * (total - len(checked)) / 60:.1f} min "
                "left",
                flush=True,
            )
    finally:
        writer.close(keep_empty=False)
    return _tell(checked, tolerance)


def _check_rows(
    output: Output,
    loaded: LoadedTarget,
    requests: Mapping[str, Request],
    tolerance: float,
    done: set[tuple[str, str]],
) -> Iterator[dict[str, Any]]:
    settings, rescorer = settings_of(output.header), Rescorer(loaded.target)
    for row in output.rows:
        if (row["id"], row["arm"]) in done:
            continue
        if row["id"] not in requests:
            raise ReplayError(f"id {row['id']!r}: is not among the prompts that can be decoded")
        request = requests[row["id"]]
        claim, rescored = rescore_row(
            row,
            request,
            settings,
            loaded.tokenizer,
            rescorer,
            vocab_size=loaded.target.vocab_size,
            context_length=loaded.target.context_length,
        )
        limits = limits_of(row, request, output.header, loaded.tokenizer.stop_ids)
        findings = check_claim(claim, rescored, limits, tolerance=tolerance)
        yield {
            "id": row["id"],
            "arm": row["arm"],
            "tokens": len(claim.token_ids),
            "exceptions": len(claim.exceptions),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }


def _require_same(what: str, wanted: str, got: str) -> None:
    if wanted != got:
        raise ReplayError(f"{what} digest: got {got}, the run was made with {wanted}")


def _dtype(header: Mapping[str, Any]) -> str | None:
    dtype = header["config"]["dtype"]
    return None if dtype == "auto" else dtype


def _tell(checked: Sequence[Mapping[str, Any]], tolerance: float) -> int:
    tokens = sum(entry["tokens"] for entry in checked)
    exceptions = sum(entry["exceptions"] for entry in checked)
    findings = [finding for entry in checked for finding in entry["findings"]]
    print(
        f"{len(checked)} answers, {tokens} tokens, {exceptions} exceptions, tolerance {tolerance} "
        f"logits: {len(findings)} claims do not hold"
    )
    for finding in findings[:20]:
        print(
            f"  {finding['arm']} {finding['id']}: {finding['kind']} at {finding['position']}: "
            f"claimed {finding['claimed']:g}, found {finding['found']:g}"
        )
    return _FOUND if findings else _DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Replays what the command line says and returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except (ReplayError, PromptError, OutputError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _UNUSABLE
    except KeyboardInterrupt:
        print("interrupted: start the same command again to go on", file=sys.stderr)
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
