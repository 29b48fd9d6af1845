"""From a name, a path or an id to a drafter ready to propose."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.checkpoints.drafter_files import open_drafter
from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.locate import resolve
from asd_jax.checkpoints.placement import place_tensors
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource
from asd_jax.drafters import FAMILIES
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, TargetFacts
from asd_jax.drafters.ngram import ngram
from asd_jax.drafters.none import no_drafter
from asd_jax.load.layout import Layout, flat_params
from asd_jax.load.target import LoadedTarget, ProgressFn
from asd_jax.sharding import Partition
from asd_jax.types import Drafter

DEFAULT_NUM_DRAFT_TOKENS = 7


def load_drafter(
    path_or_id: str,
    *,
    target: LoadedTarget | None = None,
    options: DrafterOptions | None = None,
    dtype: Any = None,
    on_progress: ProgressFn | None = None,
    **option_fields: Any,
) -> Drafter:
    """Loads a drafter for a target; its family is told by its files.

    Args:
      path_or_id: "ngram" (prompt lookup), "none", or a directory, a file of weights or a hub id
        `org/name[@revision]` of a DSpark, EAGLE-3 or Medusa drafter or of a smaller model with the
        target's vocabulary. Local paths come first.
      target: What it drafts for. Not needed for "ngram" and "none".
      options: What the files do not say.
      dtype: Type of its weights and cache. Default: the target's.
      on_progress: Called with (tensors placed, tensors in all).
      **option_fields: Fields of `DrafterOptions`, instead of `options`.

    Returns:
      The `Drafter`, on the target's mesh if it has one. `num_draft_tokens` is the longest proposal;
      it is the default G of the family unless the options say otherwise.

    Raises:
      CheckpointError: The files are missing, damaged, or not of a drafter.
      ValueError: Drafter and target do not fit; the message names both sides.
    """
    options = options or DrafterOptions(**option_fields)
    if path_or_id == "ngram":
        return ngram(options.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS)
    if path_or_id == "none":
        return no_drafter()
    if target is None:
        raise ValueError(
            f"drafter: got {path_or_id!r} without a target, allowed then is 'ngram' or 'none'"
        )
    source = open_drafter(resolve(path_or_id, kind="drafter"))
    family = find_family(source.tensors, source.config)
    if family is None:
        raise CheckpointError(
            f"{source.path}: not a drafter of any known family "
            f"({', '.join(family.name for family in FAMILIES)}) by the names of its tensors"
        )
    return _load(source, family, target, options, dtype, on_progress)


def find_family(names: Collection[str], config: Mapping[str, Any]) -> DrafterFamily | None:
    """Returns the family whose tensors these are, or None."""
    return next((f for f in FAMILIES if f.is_released_as(names, config)), None)


def _load(
    source: CheckpointSource,
    family: DrafterFamily,
    target: LoadedTarget,
    options: DrafterOptions,
    dtype: Any,
    on_progress: ProgressFn | None,
) -> Drafter:
    facts = target_facts(target)
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    try:
        config = family.read_config(source.config, shapes, facts, options)
    except ValueError as error:
        raise CheckpointError(f"{source.path}: {family.name} drafter: {error}") from error
    dtype = facts.embed_tokens.dtype if dtype is None else jnp.dtype(dtype)
    mesh = None if target.target.partition is None else target.target.partition.mesh
    layout = Layout.of(
        lambda share: family.build(config, share, dtype, nnx.Rngs(0)),
        lambda size, axis: family.divide(config, size, axis),
        family.param_axes,
        dtype,
        mesh,
    )
    rules = [KeyRule(*rule) for rule in family.key_rules(config)]
    tensors = map_tensors(source.tensors, rules, layout.shapes, ignored=family.ignored_keys(config))
    tensors = {path: layout.on_mesh(path, tensor) for path, tensor in tensors.items()}
    params = place_tensors(tensors, dtype, shardings=layout.shardings, on_progress=on_progress)

    def read(name: str) -> Any:
        return source.tensors[name].read()

    drafter = family.as_drafter(config, layout.module(params), facts, options, read)
    own = sum(leaf.size for leaf in params.values())
    return on_target_mesh(drafter.replace(num_params=own), target)


def target_facts(target: LoadedTarget) -> TargetFacts:
    """Returns what a drafter may know of a loaded target."""
    params = flat_params(target.target.params)
    return TargetFacts(
        config=target.config,
        embed_tokens=params["embed_tokens"],
        lm_head=params.get("lm_head", params["embed_tokens"]),
        data_axis=target.target.data_axis,
    )


def on_target_mesh(drafter: Drafter, target: LoadedTarget) -> Drafter:
    """Returns the drafter with the places of its weights, which lie on the target's mesh."""
    partition = target.target.partition
    if partition is None:
        return drafter
    mesh = partition.mesh
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = jax.tree.map(
        lambda leaf: leaf if _is_on(leaf, mesh) else jax.device_put(leaf, everywhere),
        drafter.params,
    )
    specs = tuple(leaf.sharding.spec for leaf in jax.tree.leaves(params))
    return dataclasses.replace(drafter, params=params, partition=Partition(mesh, specs))


def _is_on(leaf: jax.Array, mesh: jax.sharding.Mesh) -> bool:
    sharding = leaf.sharding
    return isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh == mesh
