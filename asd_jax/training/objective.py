"""One function from weights to loss, whatever the family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from asd_jax.drafters.family import TargetFacts
from asd_jax.models.parameters import flat_params, unflat_params
from asd_jax.training.batch import Batch, Signals
from asd_jax.training.blueprint import Blueprint
from asd_jax.training.dspark_loss import DsparkWeights, dspark_loss, sample_anchors
from asd_jax.training.eagle3_loss import eagle3_loss
from asd_jax.training.medusa_loss import medusa_loss


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised, static.

    Attributes:
      family: Name of the drafter's family.
      graphdef: Of the drafter's module.
      num_ids: Ids of the target that stand for a token.
      num_steps: EAGLE-3's unrolled steps.
      num_anchors: Blocks of a text in DSpark's loss.
      loss_weights: Of DSpark's loss.
      dtype: That weights are rounded to before anything is computed with them.
    """

    family: str
    graphdef: nnx.GraphDef
    num_ids: int
    num_steps: int
    num_anchors: int
    loss_weights: DsparkWeights = DsparkWeights()
    dtype: str = "float32"

    def __call__(
        self,
        params: dict[str, jax.Array],
        tables: Mapping[str, jax.Array],
        batch: Batch,
        signals: Signals,
        key: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns the loss and metrics by draft position.

        Args:
          params: Trained weights by path.
          tables: From `frozen_tables`.
          batch: Texts.
          signals: What the target says of them.
          key: Consumed by DSpark's choice of anchors.
        """
        rounded = {path: leaf.astype(self.dtype) for path, leaf in params.items()}
        module: Any = nnx.merge(self.graphdef, unflat_params(rounded))
        if self.family == "medusa":
            return medusa_loss(
                module,
                batch,
                signals,
                lm_head=tables.get("target_head", tables["lm_head"]),
                num_ids=self.num_ids,
                token_ids=tables.get("token_ids"),
            )
        if self.family == "eagle3":
            own = module.reduced_head if module.config.is_reduced else module.lm_head
            teacher = tables["target_head"]
            return eagle3_loss(
                module,
                batch,
                signals,
                embed_tokens=tables["embed_tokens"],
                head=teacher if own is None else own[...],
                target_head=teacher,
                token_ids=tables["token_ids"],
                num_steps=self.num_steps,
            )
        anchors, is_real = sample_anchors(key, batch, self.num_anchors)
        return dspark_loss(
            module,
            batch,
            signals,
            anchors,
            is_real,
            embed_tokens=tables["embed_tokens"],
            lm_head=tables.get("target_head", tables["lm_head"]),
            token_ids=tables.get("token_ids"),
            loss_weights=self.loss_weights,
        )


def frozen_tables(blueprint: Blueprint, facts: TargetFacts) -> dict[str, jax.Array]:
    """Returns the target's tables that a loss reads; none of them is trained."""
    tables = {"embed_tokens": facts.embed_tokens, "lm_head": facts.lm_head}
    ids = blueprint.scored_ids
    if ids is None and blueprint.family.name == "eagle3":
        ids = np.arange(facts.num_ids, dtype=np.int32)
    if ids is not None:
        tables["token_ids"] = jnp.asarray(ids)
        tables["target_head"] = jnp.take(facts.lm_head, jnp.asarray(ids), axis=0)
    return tables


def start_params(
    blueprint: Blueprint, facts: TargetFacts, *, seed: int, dtype: Any
) -> tuple[nnx.GraphDef, dict[str, jax.Array]]:
    """Returns a drafter's module and fresh weights by path, chosen to do no harm.

    Medusa's blocks begin as the identity, a reduced output projection as the target's rows, and
    DSpark's Markov head as almost nothing.
    """
    module: Any = blueprint.build(seed, dtype)
    if blueprint.family.name == "medusa":
        for head in module.heads:
            for block in head.blocks:
                block.weight[...] = jnp.zeros_like(block.weight[...])
    for name in ("reduced_head", "reduced_lm_head", "lm_head"):
        head = getattr(module, name, None)
        if head is not None:
            rows = frozen_tables(blueprint, facts).get("target_head", facts.lm_head)
            head[...] = rows[: head[...].shape[0]].astype(head[...].dtype)
    graphdef, state = nnx.split(module)
    params = flat_params(state)
    missing = [name for name in blueprint.shapes if blueprint.path(name) not in params]
    if missing:
        raise ValueError(f"tensors without a parameter: {', '.join(missing)}")
    return graphdef, params
