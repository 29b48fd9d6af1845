"""The optimiser and one step of it, jitted; on a mesh the texts are divided along `data`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import struct

from asd_jax.training.batch import Batch, Signals
from asd_jax.training.objective import Objective
from asd_jax.types import PyTree, Target


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a linear warm-up and a cosine to zero.

    Attributes:
      learning_rate: At its peak.
      warmup_share: Share of all steps that the warm-up takes.
      num_steps: Optimiser steps in all.
      clip_norm: Largest norm of a gradient.
      weight_decay: As in AdamW.
      accumulation: Batches whose gradients are averaged for one optimiser step.
    """

    learning_rate: float
    num_steps: int
    warmup_share: float = 0.04
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    accumulation: int = 1


class TrainState(struct.PyTreeNode):
    """All that changes while training.

    Attributes:
      step: Batches seen, int32 [].
      params: The drafter's weights by path.
      optimizer: State of the optimiser.
    """

    step: jax.Array
    params: dict[str, jax.Array]
    optimizer: PyTree


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Returns clip -> AdamW -> schedule, over averaged gradients."""
    warmup = max(int(config.num_steps * config.warmup_share), 1)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, max(config.num_steps, warmup + 1)
    )
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(schedule, weight_decay=config.weight_decay),
    )
    return optax.MultiSteps(chain, config.accumulation).gradient_transformation()


def start(params: dict[str, jax.Array], config: OptimizerConfig) -> TrainState:
    """Returns the state before the first step."""
    return TrainState(
        step=jnp.int32(0), params=params, optimizer=make_optimizer(config).init(params)
    )


@functools.partial(jax.jit, static_argnames=("feature_layers",))
def signals_of(target: Target, batch: Batch, *, feature_layers: tuple[int, ...]) -> Signals:
    """Runs the target over a batch of texts.

    Args:
      target: Whole on every device.
      batch: Texts; divided along a mesh's data axis where they are.
      feature_layers: Residual streams to return, hidden_states indices.
    """
    num_rows, num_tokens = batch.tokens.shape
    output = target.forward(
        target.params,
        batch.tokens,
        target.init_cache(num_rows, num_tokens),
        logit_rows=jnp.zeros((num_rows,), jnp.int32),
        feature_layers=feature_layers,
    )
    return Signals(features=output.features, hidden=output.hidden)


@functools.partial(
    jax.jit,
    static_argnames=("objective", "config"),
    donate_argnames=("state",),
)
def train_step(
    state: TrainState,
    tables: Mapping[str, jax.Array],
    batch: Batch,
    signals: Signals,
    key: jax.Array,
    *,
    objective: Objective,
    config: OptimizerConfig,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Takes one batch in.

    Args:
      state: Donated.
      tables: From `objective.frozen_tables`.
      batch: Texts; divided along a mesh's data axis where they are.
      signals: What the target says of them.
      key: Of the whole run; not consumed, each step folds its number in.
      objective: What is minimised.
      config: Of the optimiser.

    Returns:
      The next state, and `loss`, `gradient_norm` and the objective's metrics.
    """
    own_key = jax.random.fold_in(key, state.step)
    (loss, metrics), gradient = jax.value_and_grad(objective, has_aux=True)(
        state.params, tables, batch, signals, own_key
    )
    updates, optimizer = make_optimizer(config).update(gradient, state.optimizer, state.params)
    new = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        optimizer=optimizer,
    )
    return new, {"loss": loss, "gradient_norm": optax.tree.norm(gradient), **metrics}
