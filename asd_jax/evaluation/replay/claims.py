"""Output rows as claims, with the prompts and the limits that they were made under."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from asd_jax.evaluation.plan import Plan, Request, Settings, TextCodec, prompt_ids
from asd_jax.evaluation.replay.check import Claim, Limits
from asd_jax.evaluation.replay.rescore import Rescored, Rescorer
from asd_jax.sampling import sampling_params
from asd_jax.types import Controls


class ReplayError(ValueError):
    """An output file that cannot be replayed; the message names it and says why."""


class Output(NamedTuple):
    """An output file of `experiments.decode`.

    Attributes:
      header: What its first line says of the run.
      rows: The others.
    """

    header: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]


def read_output(path: str | Path) -> Output:
    """Reads an output file; a last line that a kill cut short is left out.

    Raises:
      ReplayError: It is no output file, or drafted without tracing its exceptions.
      OSError: It cannot be read.
    """
    # Not splitlines(): texts hold U+2028 and other ends of lines as they are.
    first, *lines = Path(path).read_bytes().split(b"\n")[:-1] or [b""]
    try:
        header = json.loads(first)["run"]
        config = header["config"]
        drafts = set(config["arms"]) - {"greedy"}
        has_trace = bool(config["trace"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReplayError(f"{path}: not an output file of experiments.decode") from error
    if drafts and not has_trace:
        raise ReplayError(
            f"{path}: trace: got False, allowed is True: without it rows do not say where their "
            "exceptions are"
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            row = json.loads(line)
            _ = row["id"], row["arm"], row["token_ids"], row["ledger"]["spent"]
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayError(f"{path}: line {number}: not a row of an answer") from error
        rows.append(row)
    return Output(header, tuple(rows))


def settings_of(header: Mapping[str, Any]) -> Settings:
    """Returns the settings that a run was made with."""
    config, verifier = header["config"], header["config"]["verifier"]
    return Settings(
        controls=Controls(
            float(verifier["budget"]), float(verifier["gate"]), int(verifier["block_cap"])
        ),
        max_new_tokens=config["max_new_tokens"],
        temperature=config["temperature"],
        top_k=config["top_k"],
        top_p=config["top_p"],
        seed=config["seed"],
        ignore_eos=config["ignore_eos"],
        protect_stop_ids=verifier["protect_stop_ids"],
        thinking=config["thinking"],
    )


def requests_of(plan: Plan) -> dict[str, Request]:
    """Returns a plan's requests by id."""
    return {request.prompt.id: request for batch in plan.batches for request in batch}


def limits_of(
    row: Mapping[str, Any], request: Request, header: Mapping[str, Any], stop_ids: Sequence[int]
) -> Limits:
    """Returns what a row was allowed under its arm.

    Rules other than ASD have no ledger to keep to: only their charges are checked.
    """
    verifier = header["config"]["verifier"]
    protected = tuple(stop_ids) if verifier["protect_stop_ids"] else ()
    if row["arm"] != "asd":
        return Limits(0.0, 0.0, 0)
    if verifier["rule"] != "asd":
        return Limits(math.inf, math.inf, 2**31 - 1)
    return Limits(
        request.budget, request.gate, request.block_cap, verifier["value_scheme"], protected
    )


def rescore_row(
    row: Mapping[str, Any],
    request: Request,
    settings: Settings,
    tokenizer: TextCodec,
    rescorer: Rescorer,
    *,
    vocab_size: int,
    context_length: int,
) -> tuple[Claim, Rescored]:
    """Scores all turns of a row.

    Args:
      row: From an output file.
      request: Its request.
      settings: Of the run.
      tokenizer: The target's.
      rescorer: Of the target.
      vocab_size: V of the target.
      context_length: Positions of the target.

    Raises:
      ReplayError: A turn's prompt is not as long as the row says.
    """
    claim = Claim(
        id=row["id"],
        arm=row["arm"],
        token_ids=row["token_ids"],
        exceptions=row.get("exceptions", ()),
        ledger=row["ledger"],
    )
    params = _scalar_params(settings, request.seed)
    said, start = claim.said_targets(), 0
    texts: list[str] = []
    parts: list[Rescored] = []
    for turn in row.get("turns") or [row]:
        ids = list(turn["token_ids"])
        prompt: Sequence[int] = request.first_ids
        if texts:
            prompt = prompt_ids(
                request.prompt,
                texts,
                tokenizer,
                thinking=request.thinking,
                vocab_size=vocab_size,
                context_length=context_length,
            )
        if len(prompt) != turn["prompt_tokens"]:
            raise ReplayError(
                f"id {row['id']!r}: prompt_tokens: got {turn['prompt_tokens']}, the prompt has "
                f"{len(prompt)}"
            )
        parts.append(rescorer(prompt, ids, said[start : start + len(ids)], params))
        start += len(ids)
        texts.append(tokenizer.decode(ids))
    columns = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("top_ids", "regret", "target_regret")
    ]
    return claim, Rescored(*columns)


def _scalar_params(settings: Settings, seed: int) -> Any:
    params = sampling_params(
        1,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=seed,
    )
    return jax.tree.map(lambda leaf: leaf[0], params)
