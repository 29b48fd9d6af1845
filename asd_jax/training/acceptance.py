"""How good a drafter is while it is trained: by decoding with it, not by its loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx

from asd_jax.acceptance import asd
from asd_jax.decode import DecodeConfig, Requests, decode
from asd_jax.drafters.family import DrafterOptions, TargetFacts
from asd_jax.models.parameters import unflat_params
from asd_jax.sharding import to_host
from asd_jax.training.blueprint import Blueprint
from asd_jax.types import Drafter, Target


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """What strict decoding of held-out prompts came to.

    Attributes:
      acceptance_length: Tokens emitted per target forward, the target's own included.
      by_position: Share of its proposals in which draft position g was kept.
      rounds: Target forwards.
    """

    acceptance_length: float
    by_position: tuple[float, ...]
    rounds: int


def as_drafter(
    blueprint: Blueprint, graphdef: nnx.GraphDef, params: dict[str, jax.Array], facts: TargetFacts
) -> Drafter:
    """Returns the drafter with these weights, as `load_drafter` would of the exported files.

    Args:
      blueprint: What it is.
      graphdef: Of its module.
      params: Its weights by path.
      facts: About the target.
    """
    module = nnx.merge(graphdef, unflat_params(params))

    def read(name: str) -> Any:
        return blueprint.tables[name]

    return blueprint.family.as_drafter(blueprint.config, module, facts, DrafterOptions(), read)


def measure(
    target: Target, drafter: Drafter, batches: list[Requests], config: DecodeConfig
) -> Acceptance:
    """Decodes prompts strictly.

    Args:
      target: The model.
      drafter: Its drafter.
      batches: Requests whose controls allow no exception.
      config: With G = `num_draft_tokens`.
    """
    emitted = rounds = 0
    kept = np.zeros((config.num_draft_tokens,), np.int64)
    proposed = np.zeros_like(kept)
    for requests in batches:
        result = to_host(decode(target, drafter, asd(), requests, config))
        is_real = np.asarray(requests.max_new_tokens) > 0
        emitted += int(np.maximum(result.num_emitted - 1, 0)[is_real].sum())
        rounds += int(result.rounds[is_real].sum())
        kept += result.position_accepted[is_real].sum(axis=0)
        proposed += result.position_proposed[is_real].sum(axis=0)
    return Acceptance(
        acceptance_length=emitted / max(rounds, 1),
        by_position=tuple(float(share) for share in kept / np.maximum(proposed, 1)),
        rounds=rounds,
    )
