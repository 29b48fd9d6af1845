"""Trains a drafter on answers that the target wrote, and writes it as drafters are released.

    python -m experiments.decode --config=experiments/configs/answers_smollm2.py \\
        --config.output=outputs/answers_smollm2.jsonl
    python -m experiments.distill --config=experiments/configs/distill_smollm2_dspark.py

Writes into --config.directory

    checkpoints/   the last steps and the best one
    log.jsonl      losses, and what decoding held-out prompts came to
    curves.png     the same as a picture
    drafter/       the best weights in the released layout, with a model card

A run that was killed goes on when it is started again, and ends with the very weights of a run that
was not. `--help` lists all fields.

Exit status: 0 done; 2 the configuration or a file cannot be used; 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from absl import app
from flax import nnx

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.decode import DecodeConfig, Requests, bucket_length, make_requests
from asd_jax.drafters.family import TargetFacts
from asd_jax.evaluation.prompts import PromptError, read_prompts
from asd_jax.evaluation.receipt import git_commit
from asd_jax.load import LoadedTarget, load_target
from asd_jax.load.drafter import target_facts
from asd_jax.sharding import make_mesh
from asd_jax.training import acceptance, curves, trainer
from asd_jax.training.batch import Batch, Signals
from asd_jax.training.batches import (
    batch_at,
    num_batches,
    padded_batch,
    padded_lengths,
    rows_at,
)
from asd_jax.training.blueprint import Blueprint, DrafterSizes, draw_up
from asd_jax.training.dspark_loss import DsparkWeights
from asd_jax.training.examples import Examples, read_examples
from asd_jax.training.exclusion import read_exclusion
from asd_jax.training.export import export, read_export
from asd_jax.training.feature_scale import feature_scale, scaled, unfolded
from asd_jax.training.feature_store import ASKED, FeatureStore, FeatureStoreError
from asd_jax.training.linear_start import linear_start
from asd_jax.training.objective import frozen_tables
from asd_jax.training.train_step import OptimizerConfig, signals_of
from asd_jax.training.vocabulary import coverage, draft_vocabulary
from asd_jax.types import Controls
from experiments import command_line, distill_config
from experiments.background import in_background
from experiments.distill_config import DistillConfig
from experiments.fields import ConfigError

_DONE, _UNUSABLE, _INTERRUPTED = 0, command_line.UNUSABLE, 130
_SCALED_BY = 32  # batches that tell how wide features are


def run(config: DistillConfig, name: str) -> int:
    """Trains what the configuration says and returns the exit status.

    Args:
      config: What to do.
      name: The configuration's name, for the model card.

    Raises:
      ConfigError: A file cannot be used, or sizes do not fit the target.
    """
    directory = Path(config.directory)
    try:
        prompts = read_prompts(config.prompts)
        exclusion = read_exclusion(config.exclude)
        loaded = load_target(config.target)
        examples = read_examples(
            prompts,
            config.answers,
            loaded.tokenizer,
            target_digest=loaded.source.digest(),
            max_tokens=config.max_tokens,
            exclusion=exclusion,
            held_out_fraction=config.held_out_fraction,
            learns_prompts=config.learns_prompts,
        )
        report = examples.report
        print(
            f"texts    {report.used} of which {report.held_out} held out, {report.answer_tokens:,} "
            f"tokens to learn; dropped: {dict(report.dropped) or 'none'}"
        )
        for (reason, file), count in sorted(report.exclusion.counts.items()):
            print(f"excluded {count} prompts by {reason} of {file or 'none'}")
        blueprint = _blueprint(config, loaded, examples)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    train_config = trainer.TrainConfig(
        OptimizerConfig(**dataclasses.asdict(config.optimizer)),
        seed=config.seed,
        num_anchors=config.num_anchors,
        log_every=config.log_every,
        evaluate_every=config.evaluate_every,
        patience=config.patience,
        dtype=config.dtype,
        scales_features=True,
        start_from=config.start_from,
        loss_weights=DsparkWeights(**dataclasses.asdict(config.dspark_weights)),
        rounds_features=config.feature_cache.directory is not None,
    )
    facts = target_facts(loaded)
    buckets = padded_lengths(examples)
    requests, decode_config = _held_out(config, examples)

    def evaluate(params: dict[str, jax.Array], graphdef: nnx.GraphDef) -> acceptance.Acceptance:
        drafter = acceptance.as_drafter(blueprint, graphdef, params, facts)
        return acceptance.measure(loaded.target, drafter, [requests], decode_config)

    stored = _stored_signals(config, loaded, blueprint, examples, buckets)

    def batch_of(step: int) -> Batch:
        return batch_at(
            examples, step, batch_size=config.batch_size, seed=config.seed, buckets=buckets
        )

    def epoch(most: int | None = None) -> Iterator[tuple[Batch, Signals]]:
        for step in range(num_batches(examples, config.batch_size))[:most]:
            batch = batch_of(step)
            signals = stored(step, batch)
            if signals is None:
                signals = trainer.asked(loaded.target, batch, blueprint, train_config)
            yield batch, signals

    scale = feature_scale(epoch(_SCALED_BY)) if blueprint.feature_layers else None
    events = trainer.train(
        loaded.target,
        facts,
        blueprint,
        batch_of,
        evaluate,
        train_config,
        directory,
        first_weights=_first_weights(config, blueprint, facts, epoch, scale),
        stored_signals=stored,
        scale=scale,
        mesh=None if config.data_devices == 1 else make_mesh(data=config.data_devices),
    )
    for event in in_background(events):
        print(_told(event, train_config.num_batches), flush=True)
    params = trainer.best_params(directory, blueprint, facts, train_config, scale=scale)
    card = _card(config, name, loaded, directory, report)
    export(directory / "drafter", blueprint, params, dtype=ml_dtypes.bfloat16, card=card)
    curves.draw(directory / "log.jsonl", directory / "curves.png")
    print(f"drafter  {directory / 'drafter'}")
    return _DONE


def _blueprint(config: DistillConfig, loaded: LoadedTarget, examples: Examples) -> Blueprint:
    sizes = dataclasses.asdict(config.drafter)
    size = sizes.pop("draft_vocab_size")
    layers = sizes.pop("feature_layers")
    vocabulary = None
    if size is not None:
        vocabulary = draft_vocabulary(examples, size, loaded.target.vocab_size)
        covered = coverage(examples, vocabulary)
        print(f"vocab    {size} ids cover {covered.held_out:.1%} of held-out tokens")
    wanted = DrafterSizes(**sizes, feature_layers=tuple(map(int, layers)) or None)
    return draw_up(wanted, target_facts(loaded), vocabulary=vocabulary)


def _stored_signals(
    config: DistillConfig,
    loaded: LoadedTarget,
    blueprint: Blueprint,
    examples: Examples,
    buckets: tuple[int, ...],
) -> Callable[[int, Batch], Signals | None]:
    """Fills the feature cache, if there is to be one, and returns how a step's batch is read."""
    cache = config.feature_cache
    if cache.directory is None:
        return lambda step, batch: None
    layers = blueprint.feature_layers
    store = FeatureStore(
        cache.directory,
        examples,
        target_digest=loaded.source.digest(),
        feature_layers=layers,
        dtype=jax.tree.leaves(loaded.target.params)[0].dtype,
        max_bytes=int(cache.gib * 2**30),
    )
    begun, asked = time.perf_counter(), 0
    shards = store.fill(
        lambda batch: signals_of(loaded.target, batch, feature_layers=layers),
        lambda rows: padded_batch(examples, rows, ASKED, buckets),
    )
    for shard in in_background(shards):
        asked += not shard.was_there
        if shard.done == shard.total or (asked and shard.done % 10 == 0):
            left = (time.perf_counter() - begun) / max(asked, 1) * (shard.total - shard.done)
            print(
                f"features {shard.done} of {shard.total} shards in {store.directory}"
                + (f", {left / 60:.0f} min left" if asked else ""),
                flush=True,
            )

    def stored(step: int, batch: Batch) -> Signals | None:
        rows = rows_at(examples, step, batch_size=config.batch_size, seed=config.seed)
        return store.read(rows, *batch.tokens.shape)

    return stored


def _first_weights(
    config: DistillConfig,
    blueprint: Blueprint,
    facts: TargetFacts,
    epoch: Callable[[], Iterator[tuple[Batch, Signals]]],
    scale: np.ndarray | None,
) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
    """Returns what makes fresh weights those of step 0."""

    def first(fresh: dict[str, jax.Array]) -> dict[str, jax.Array]:
        if config.start_from is None:
            return fresh
        if config.start_from != distill_config.LINEAR:
            params = read_export(config.start_from, blueprint, "float32")
            return params if scale is None else unfolded(params, scale)
        print("start    least squares over the features", flush=True)
        head = frozen_tables(blueprint, facts)["target_head"]
        pairs = epoch() if scale is None else ((b, scaled(s, scale)) for b, s in epoch())
        return linear_start(fresh, head, pairs)

    return first


def _held_out(config: DistillConfig, examples: Examples) -> tuple[Requests, DecodeConfig]:
    rows = examples.rows(held_out=True)[: config.evaluate_prompts]
    if len(rows) == 0:
        raise ConfigError(
            f"held_out_fraction: got {config.held_out_fraction}, allowed is one that leaves a text "
            "to measure with"
        )
    prompts = [examples.text(row)[: examples.answer_start[row]].tolist() for row in rows]
    requests = make_requests(
        prompts, controls=Controls.strict(), max_new_tokens=config.evaluate_tokens
    )
    longest = bucket_length(max(map(len, prompts)))
    return requests, DecodeConfig(
        num_draft_tokens=config.drafter.num_draft_tokens,
        max_new_tokens=config.evaluate_tokens,
        max_len=longest + config.evaluate_tokens,
        stop_ids=examples.stop_ids,
    )


def _told(event: trainer.Event, total: int) -> str:
    if isinstance(event, trainer.Progress):
        minutes = event.seconds_left / 60
        return (
            f"[{event.step}/{total}] loss {event.metrics['loss']:.3f}, "
            f"{event.metrics['seconds_per_batch']:.2f} s a batch, {minutes:.0f} min left"
        )
    positions = " ".join(f"{share:.2f}" for share in event.acceptance.by_position)
    best = ", the best so far" if event.is_best else ""
    return (
        f"[{event.step}/{total}] held out: {event.acceptance.acceptance_length:.3f} tokens a "
        f"target forward (by position {positions}){best}"
    )


def _card(
    config: DistillConfig, name: str, loaded: LoadedTarget, directory: Path, report: Any
) -> str:
    """Returns the model card: what it is, what it was made of, and how to make it again."""
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    best = max(
        (line for line in lines if "held_out" in line),
        key=lambda line: line["held_out"]["acceptance_length"],
    )
    length = best["held_out"]["acceptance_length"]
    shares = ", ".join(f"{share:.3f}" for share in best["held_out"]["by_position"])
    fields = json.dumps(dataclasses.asdict(config), indent=1)
    dropped = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items()) or "none"
    return f"""# {config.drafter.family} drafter for {config.target}

Distilled with `python -m experiments.distill --config=experiments/configs/{name}.py`, commit
{git_commit()}, from {report.used - report.held_out} answers of the target ({report.answer_tokens:,}
tokens, held-out ones included); dropped: {dropped}. Embedding and output projection are the
target's and not stored.

Held-out prompts, strict greedy decoding, after batch {best["step"]}: {length:.3f} tokens a target
forward, the target's own included; kept by draft position: {shares}.

Target digest: {loaded.source.digest()}

```json
{fields}
```
"""


def main(argv: list[str]) -> int:
    """Trains what the command line says and returns the exit status."""
    del argv
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(*command_line.checked_config(distill_config.SCHEMA))
    except (ConfigError, PromptError, CheckpointError, FeatureStoreError, OSError) as error:
        command_line.complain(str(error))
        return _UNUSABLE
    except KeyboardInterrupt:
        print("interrupted: start the same command again to go on", file=sys.stderr)
        sys.stdout.flush()
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(distill_config.SCHEMA))
