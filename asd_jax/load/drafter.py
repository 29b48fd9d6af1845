"""From a name, a path or an id to a drafter ready to propose."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from asd_jax import tokenizer as tokenizers
from asd_jax.checkpoints.drafter_files import open_drafter
from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.placement import place_tensors
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource, some
from asd_jax.drafters import FAMILIES
from asd_jax.drafters.draft_model import draft_model
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, TargetFacts
from asd_jax.drafters.ngram import ngram
from asd_jax.drafters.none import no_drafter
from asd_jax.load.layout import Layout
from asd_jax.load.target import (
    LoadedTarget,
    ProgressFn,
    load_target,
    read_target_config,
    weight_dtype,
)
from asd_jax.models import MODELS
from asd_jax.models.parameters import flat_params
from asd_jax.models.transformer import TransformerConfig
from asd_jax.sharding import Partition
from asd_jax.tokenizer import IdsOnly, Tokenizer
from asd_jax.types import Drafter, Target

DEFAULT_NUM_DRAFT_TOKENS = 7
# Drafters that are known by a name, and the options that they heed.
_WITHOUT_FILES: dict[str, tuple[str, ...]] = {"ngram": ("corpus",), "none": ()}


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
    if options is not None and option_fields:
        raise ValueError(f"options: got them as well as {', '.join(option_fields)}, allowed is one")
    options = options or DrafterOptions(**option_fields)
    if path_or_id in _WITHOUT_FILES:
        options.require_taken(path_or_id, _WITHOUT_FILES[path_or_id])
        if path_or_id == "none":
            return no_drafter()
        return ngram(
            options.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS, corpus=options.corpus or ()
        )
    if target is None:
        raise ValueError(
            f"drafter: got {path_or_id!r} without a target, allowed then is 'ngram' or 'none'"
        )
    path = _resolve(path_or_id)
    if path.suffix == ".gguf":
        return _load_draft_model(path, target, options, dtype, on_progress)
    source = open_drafter(path)
    family = find_family(source.tensors, source.config)
    if family is not None:
        return _load(source, family, target, options, dtype, on_progress)
    _require_model(source)
    return _load_draft_model(source.path, target, options, dtype, on_progress)


def has_distribution(path_or_id: str) -> bool:
    """Returns whether the drafter scores a vocabulary, so that `with_logits` means anything to it.

    Args:
      path_or_id: As in `load_drafter`; no file is looked at.
    """
    return path_or_id not in _WITHOUT_FILES


def _resolve(path_or_id: str) -> Path:
    try:
        return resolve(path_or_id, kind="drafter")
    except CheckpointError as error:
        raise CheckpointError(
            f"drafter: got {path_or_id!r}, allowed is ngram, none, or a drafter's folder, file or "
            f"hub id: {error}"
        ) from error


def check_drafter(path_or_id: str, *, target: CheckpointSource, **option_fields: Any) -> str | None:
    """Looks at a drafter's files and whether they fit a target, before any weight is read.

    Args:
      path_or_id: As in `load_drafter`.
      target: The opened checkpoint of the target.
      **option_fields: Fields of `DrafterOptions`.

    Returns:
      The digest of its files, None for a drafter without any.

    Raises:
      CheckpointError: They are missing, damaged, of no drafter and of no model, or do not fit.
    """
    options = DrafterOptions(**option_fields)
    if path_or_id in _WITHOUT_FILES:
        options.require_taken(path_or_id, _WITHOUT_FILES[path_or_id])
        return None
    path = _resolve(path_or_id)
    if path.suffix == ".gguf":
        return _check_draft_model(path, target, options)
    source = open_drafter(path)
    family = find_family(source.tensors, source.config)
    if family is None:
        _require_model(source)
        return _check_draft_model(source.path, target, options)
    config = read_target_config(target)
    table = jax.ShapeDtypeStruct((config.vocab_size, config.hidden_size), jnp.float32)
    facts = TargetFacts(config=config, embed_tokens=table, lm_head=table)  # type: ignore[arg-type]
    _read_config(source, family, facts, options)
    return source.digest()


def _check_draft_model(path: Path, target: CheckpointSource, options: DrafterOptions) -> str:
    options.require_taken("draft_model", ())
    source = open_checkpoint(path)
    read_target_config(source)
    own, drafter = (tokenizers.from_checkpoint(one) for one in (target, source))
    require_same_vocabulary(own, drafter, path)
    return source.digest()


def find_family(names: Collection[str], config: Mapping[str, Any]) -> DrafterFamily | None:
    """Returns the family whose tensors these are, or None."""
    return next((f for f in FAMILIES if f.is_released_as(names, config)), None)


def _require_model(source: CheckpointSource) -> None:
    """Raises a CheckpointError unless these are the files of a whole model."""
    is_known = source.config.get("model_type") in MODELS
    if is_known and "model.embed_tokens.weight" in source.tensors:
        return
    raise CheckpointError(
        f"{source.path}: neither a drafter ({', '.join(family.name for family in FAMILIES)}) nor a "
        f"model ({', '.join(sorted(MODELS))}) by its config and the names of its tensors: "
        f"{some(source.tensors, limit=4)}"
    )


def _load_draft_model(
    path: Path,
    target: LoadedTarget,
    options: DrafterOptions,
    dtype: Any,
    on_progress: ProgressFn | None,
) -> Drafter:
    options.require_taken("draft_model", ())
    partition = target.target.partition
    loaded = load_target(
        str(path),
        dtype=target_facts(target).embed_tokens.dtype if dtype is None else dtype,
        mesh=None if partition is None else partition.mesh,
        on_progress=on_progress,
    )
    require_same_vocabulary(target.tokenizer, loaded.tokenizer, path)
    drafter = draft_model(
        loaded.target,
        options.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS,
        vocab_size=target.config.vocab_size,
        with_logits=options.with_logits,
    )
    return on_target_mesh(drafter, partition)


def require_same_vocabulary(target: Tokenizer, drafter: Tokenizer, path: Path) -> None:
    """Checks that every id stands for the same token. Rows of padding behind them do not matter.

    Without a tokenizer on one side only the number of ids can be compared.

    Raises:
      CheckpointError: With the first ids that differ.
    """
    if isinstance(target, IdsOnly) or isinstance(drafter, IdsOnly):
        if target.num_ids != drafter.num_ids:
            raise CheckpointError(
                f"{path}: drafter has {drafter.num_ids} token ids, the target {target.num_ids}"
            )
        return
    pairs = itertools.zip_longest(target.token_strings(), drafter.token_strings(), fillvalue="")
    different = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
    if different:
        shown = "; ".join(
            f"id {i} is {a or None!r} for the target and {b or None!r} for the drafter"
            for i, a, b in different[:3]
        )
        raise CheckpointError(
            f"{path}: drafter and target have different vocabularies, {len(different)} ids differ: "
            f"{shown}"
        )


def _load(
    source: CheckpointSource,
    family: DrafterFamily,
    target: LoadedTarget,
    options: DrafterOptions,
    dtype: Any,
    on_progress: ProgressFn | None,
) -> Drafter:
    facts = target_facts(target)
    config = _read_config(source, family, facts, options)
    dtype = facts.embed_tokens.dtype if dtype is None else weight_dtype(dtype)
    partition = target.target.partition
    layout = drafter_layout(family, config, dtype, None if partition is None else partition.mesh)
    rules = [KeyRule(*rule) for rule in family.key_rules(config)]
    tensors = map_tensors(source.tensors, rules, layout.shapes, ignored=family.ignored_keys(config))
    tensors = {path: layout.on_mesh(path, tensor) for path, tensor in tensors.items()}
    params = place_tensors(tensors, dtype, shardings=layout.shardings, on_progress=on_progress)

    def make(module: Any) -> Drafter:
        def read(name: str) -> Any:
            return source.tensors[name].read()

        return family.as_drafter(config, module, facts, options, read)

    try:
        return assemble(make, layout, params)
    except ValueError as error:
        raise CheckpointError(f"{source.path}: {family.name} drafter: {error}") from error


def drafter_layout(family: DrafterFamily, config: Any, dtype: Any, mesh: Mesh | None) -> Layout:
    """Lays a trained drafter out on its target's mesh, or on the default device without one.

    Args:
      family: Whose drafter it is.
      config: From the family's `read_config`.
      dtype: Of its weights.
      mesh: The target's.

    Raises:
      ValueError: The mesh's model axis cannot divide it.
    """
    return Layout.of(
        lambda share: family.build(config, share, dtype, nnx.Rngs(0)),
        lambda size, axis: family.divide(config, size, axis),
        family.param_axes,
        dtype,
        mesh,
    )


def assemble(make: Callable[[Any], Drafter], layout: Layout, params: Mapping[str, Any]) -> Drafter:
    """Returns a drafter with its parameters in it, their number and their places.

    Args:
      make: From the module to the drafter: the family's `as_drafter`.
      layout: From `drafter_layout`.
      params: By path, arrays or, to plan without allocating any, `layout.abstract_params()`.

    Raises:
      ValueError: From `make`.
    """
    drafter = make(layout.module(params))
    # A family may drop what turns out to be the target's, such as a copied embedding.
    kept = {id(leaf) for leaf in jax.tree.leaves(drafter.params)}
    own = sum(math.prod(layout.shapes[path]) for path, leaf in params.items() if id(leaf) in kept)
    return on_target_mesh(drafter.replace(num_params=own), layout.partition)


def _read_config(
    source: CheckpointSource, family: DrafterFamily, facts: TargetFacts, options: DrafterOptions
) -> Any:
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    try:
        options.require_taken(family.name, family.takes)
        _require_ranks(shapes)
        return family.read_config(source.config, shapes, facts, options)
    except ValueError as error:
        raise CheckpointError(f"{source.path}: {family.name} drafter: {error}") from error


def _require_ranks(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises a ValueError for tensors that no family could have: families read sizes off them."""
    for name, shape in shapes.items():
        is_vector = "norm" in name or not name.endswith(".weight")
        if 0 in shape or (not is_vector and len(shape) != 2):
            kind = "no empty axis" if 0 in shape else "a matrix"
            raise ValueError(f"tensor {name}: got shape {shape}, allowed is {kind}")


def target_facts(target: LoadedTarget) -> TargetFacts:
    """Returns what a drafter may know of a loaded target."""
    return facts_of(target.target, target.config)


def facts_of(target: Target, config: TransformerConfig) -> TargetFacts:
    """Returns what a drafter may know of a target, whose weights may be shapes.

    Args:
      target: The target.
      config: Its sizes.
    """
    params = flat_params(target.params)
    return TargetFacts(
        config=config,
        embed_tokens=params["embed_tokens"],
        lm_head=params.get("lm_head", params["embed_tokens"]),
        data_axis=target.data_axis,
    )


def on_target_mesh(drafter: Drafter, partition: Partition | None) -> Drafter:
    """Returns the drafter with the places of its weights.

    Args:
      drafter: Its weights lie on the target's mesh, or on no mesh and are copied to all of it.
      partition: Of the target or the drafter; of it the mesh counts. None: no mesh.
    """
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
