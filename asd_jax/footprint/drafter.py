"""A drafter whose weights are shapes: all that the loader does but read the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asd_jax.drafters.family import DrafterOptions
from asd_jax.drafters.ngram import ngram
from asd_jax.footprint.drafter_sizes import RELEASED_SHAPES
from asd_jax.load.drafter import assemble, drafter_layout, facts_of, find_family
from asd_jax.models.transformer import TransformerConfig
from asd_jax.types import Drafter, Target

DRAFTERS = ("ngram", *RELEASED_SHAPES)


def abstract_drafter(
    name: str,
    config: Mapping[str, Any],
    target: Target,
    target_config: TransformerConfig,
    *,
    num_draft_tokens: int,
    dtype: Any,
) -> Drafter:
    """Returns the drafter that `load_drafter` would make of released files; allocates no weights.

    Args:
      name: One of `DRAFTERS`.
      config: Fields of its own `config.json`; nothing for "ngram".
      target: Of shapes, on a mesh. What the drafter shares with it is the very same leaf.
      target_config: The target's sizes.
      num_draft_tokens: G.
      dtype: Of its weights and cache.

    Raises:
      ValueError: A config that is not implemented, or that does not fit the target or the mesh.
    """
    if name == "ngram":
        return ngram(num_draft_tokens)
    assert target.partition is not None
    shapes = RELEASED_SHAPES[name](config)
    family = find_family(shapes, config)
    if family is None:
        raise ValueError(f"drafter: its {len(shapes)} tensors are those of no known family")
    facts = facts_of(target, target_config)
    options = DrafterOptions(num_draft_tokens=num_draft_tokens)
    own = family.read_config(config, shapes, facts, options)
    layout = drafter_layout(family, own, dtype, target.partition.mesh)

    def read(tensor: str) -> np.ndarray:
        # A vocabulary map, as offsets: the drafter scores the first of the target's ids.
        return np.zeros(shapes[tensor], np.int64)

    return assemble(
        lambda module: family.as_drafter(own, module, facts, options, read),
        layout,
        layout.abstract_params(),
    )
