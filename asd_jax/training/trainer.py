"""The training run: batches in, checkpoints, a log and the best drafter out.

Everything depends on (seed, step) alone, so a run that was killed goes on from its last checkpoint
and ends with the very weights of a run that was not.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.drafters.family import TargetFacts
from asd_jax.evaluation.whole_files import write_text
from asd_jax.sharding import DATA, shard_state
from asd_jax.training.acceptance import Acceptance
from asd_jax.training.batch import Batch, Signals
from asd_jax.training.blueprint import Blueprint
from asd_jax.training.checkpoints import Checkpoints
from asd_jax.training.dspark_loss import DsparkWeights
from asd_jax.training.feature_scale import folded, scaled
from asd_jax.training.feature_store import rounded
from asd_jax.training.objective import Objective, frozen_tables, start_params
from asd_jax.training.train_step import OptimizerConfig, signals_of, start, train_step
from asd_jax.types import Target


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
      optimizer: Its `num_steps` counts optimiser steps; batches are that times `accumulation`.
      seed: Of weights, order and anchors.
      num_anchors: Blocks of a text in DSpark's loss.
      log_every: Batches between two lines of the log.
      evaluate_every: Batches between two evaluations, each of which also saves a checkpoint.
      patience: Evaluations without a new best after which training stops; 0 = never.
      dtype: Of the weights that the loss is computed with; the optimiser's are float32, whose
        small steps bfloat16 would round away.
      loss_weights: Of DSpark's loss.
      scales_features: Whether they are divided by their widths; `train` is given those.
      start_from: What the first weights are, in words; `train` is given them.
      rounds_features: Whether what the target says is rounded as a `FeatureStore` keeps it.
    """

    optimizer: OptimizerConfig
    seed: int = 0
    num_anchors: int = 16
    log_every: int = 10
    evaluate_every: int = 200
    patience: int = 0
    dtype: str = "float32"
    loss_weights: DsparkWeights = DsparkWeights()
    rounds_features: bool = False
    scales_features: bool = False
    start_from: str | None = None

    @property
    def num_batches(self) -> int:
        """Batches in all."""
        return self.optimizer.num_steps * self.optimizer.accumulation


@dataclasses.dataclass(frozen=True)
class Progress:
    """A line of the log.

    Attributes:
      step: Batches seen.
      metrics: `loss`, `gradient_norm`, `seconds_per_batch` and those of the objective.
      seconds_left: By the pace of this process so far.
    """

    step: int
    metrics: dict[str, Any]
    seconds_left: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """An evaluation, whose step has been saved."""

    step: int
    acceptance: Acceptance
    is_best: bool


Event = Progress | Evaluated


def train(
    target: Target,
    facts: TargetFacts,
    blueprint: Blueprint,
    batch_at: Callable[[int], Batch],
    evaluate: Callable[[dict[str, jax.Array], nnx.GraphDef], Acceptance],
    config: TrainConfig,
    directory: Path,
    *,
    first_weights: Callable[[dict[str, jax.Array]], dict[str, jax.Array]] = lambda fresh: fresh,
    stored_signals: Callable[[int, Batch], Signals | None] = lambda step, batch: None,
    scale: np.ndarray | None = None,
    mesh: Mesh | None = None,
) -> Iterator[Event]:
    """Trains, or goes on training, and yields what happens.

    Args:
      target: The model, on one device; it is copied to all devices of the mesh.
      facts: About it.
      blueprint: The drafter.
      batch_at: The batch of each step.
      evaluate: Measures weights by decoding.
      config: How to train.
      directory: Holds `checkpoints/` and `log.jsonl`.
      first_weights: From fresh weights to those of step 0; not asked by a run that goes on.
      stored_signals: What the target says of the batch of a step where that is on disk, rounded;
        otherwise it is asked.
      scale: What features are divided by, [F * D]; weights are given to `evaluate` without it.
      mesh: Its data axis divides every batch. Default: one device.

    Raises:
      CheckpointError: A checkpoint cannot be saved or used, or is of another configuration.
    """
    graphdef, params = start_params(blueprint, facts, seed=config.seed, dtype=config.dtype)
    params = _cast(params, "float32")
    objective = Objective(
        family=blueprint.family.name,
        dtype=config.dtype,
        graphdef=graphdef,
        num_ids=facts.num_ids,
        num_steps=blueprint.config.num_draft_tokens if blueprint.family.name == "eagle3" else 0,
        num_anchors=config.num_anchors,
        loss_weights=config.loss_weights,
    )
    checkpoints = Checkpoints(directory / "checkpoints")
    if checkpoints.last_step is None:
        params = first_weights(params)
    state = _everywhere(start(params, config.optimizer), mesh)
    target, tables = _everywhere((target, frozen_tables(blueprint, facts)), mesh)
    described = describe(blueprint, config)
    info: dict[str, Any] = {"run": described, "best": 0.0, "waited": 0}
    if checkpoints.last_step is not None:
        state, info = checkpoints.restore(state)
        if info["run"] != described:
            changed = [k for k in described if info["run"].get(k) != described[k]]
            raise CheckpointError(
                f"{directory}: was begun with another configuration: {', '.join(changed)} differ"
            )
    log = _Log(directory / "log.jsonl", upto=int(state.step))
    key = jax.random.key(config.seed)
    begun, first = time.perf_counter(), int(state.step)
    for step in range(first, config.num_batches):
        if config.patience and info["waited"] >= config.patience:
            break
        batch = batch_at(step)
        signals = stored_signals(step, batch)
        if mesh is not None:
            batch, signals = shard_state((batch, signals), mesh)
        if signals is None:
            signals = asked(target, batch, blueprint, config)
        if scale is not None:
            signals = scaled(signals, scale)
        state, metrics = train_step(
            state, tables, batch, signals, key, objective=objective, config=config.optimizer
        )
        done = step + 1
        if done % config.log_every == 0 or done == config.num_batches:
            numbers = {name: np.asarray(value).tolist() for name, value in metrics.items()}
            pace = (time.perf_counter() - begun) / (done - first)
            numbers["seconds_per_batch"] = pace
            log.write({"step": done, **numbers})
            yield Progress(done, numbers, pace * (config.num_batches - done))
        if done % config.evaluate_every == 0 or done == config.num_batches:
            usable = state.params if scale is None else folded(state.params, scale)
            acceptance = evaluate(_cast(usable, config.dtype), graphdef)
            is_best = acceptance.acceptance_length > info["best"]
            info = {
                "run": described,
                "best": max(info["best"], acceptance.acceptance_length),
                "waited": 0 if is_best else info["waited"] + 1,
            }
            # The log first: lines of steps that are not saved are dropped by the run that goes on.
            log.write({"step": done, "held_out": dataclasses.asdict(acceptance)})
            checkpoints.save(state, info, is_best=is_best)
            yield Evaluated(done, acceptance, is_best)
    checkpoints.close()


def asked(target: Target, batch: Batch, blueprint: Blueprint, config: TrainConfig) -> Signals:
    """Returns what the target says of a batch, rounded where the run's features are.

    Args:
      target: Whole on every device.
      batch: Texts; divided along a mesh's data axis where they are.
      blueprint: The drafter, which says what is read.
      config: How to train.
    """
    signals = signals_of(target, batch, feature_layers=blueprint.feature_layers)
    return rounded(signals) if config.rounds_features else signals


def best_params(
    directory: Path,
    blueprint: Blueprint,
    facts: TargetFacts,
    config: TrainConfig,
    *,
    scale: np.ndarray | None = None,
) -> dict[str, jax.Array]:
    """Returns the weights of the best evaluation, float32, as they read features not scaled.

    Raises:
      CheckpointError: There is none, or it is damaged.
    """
    _, params = start_params(blueprint, facts, seed=config.seed, dtype=config.dtype)
    template = start(_cast(params, "float32"), config.optimizer)
    checkpoints = Checkpoints(directory / "checkpoints")
    state, _ = checkpoints.restore(template, best=True)
    checkpoints.close()
    return state.params if scale is None else folded(state.params, scale)


def describe(blueprint: Blueprint, config: TrainConfig) -> dict[str, Any]:
    """Returns what must not change between the parts of a run, made of JSON types."""
    fields = dataclasses.asdict(config)
    for name in ("log_every", "patience"):  # these change no weight
        del fields[name]
    described = {"family": blueprint.family.name, "released": blueprint.released, **fields}
    plain: dict[str, Any] = json.loads(json.dumps(described))
    return plain


class _Log:
    """Lines of JSON; those of steps that are done again are dropped first."""

    def __init__(self, path: Path, upto: int) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _step_of(line) <= upto]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(f"{line}\n" for line in kept))

    def write(self, entry: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _cast(params: dict[str, jax.Array], dtype: str) -> dict[str, jax.Array]:
    return {path: leaf.astype(dtype) for path, leaf in params.items()}


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a kill cut short


def _everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Places arrays whole on every device of a mesh."""
    if mesh is None:
        return tree
    if mesh.shape[DATA] != mesh.size:
        raise ValueError(
            f"mesh model: got {mesh.size // mesh.shape[DATA]}, allowed is 1: training divides texts"
        )
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
