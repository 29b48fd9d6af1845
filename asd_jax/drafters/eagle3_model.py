"""The EAGLE-3 network: one decoder layer over pairs of a token and a feature.

Pairs are defined in `asd_jax.drafters.eagle3`, which drafts with them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from asd_jax.cache import KVCache
from asd_jax.drafters.eagle3_config import Eagle3Config
from asd_jax.models.layers import Linear, RMSNorm, look_up, score_vocabulary
from asd_jax.models.product import product
from asd_jax.models.rope import rope_tables
from asd_jax.models.transformer import DeviceShare, attention_of, mlp_of


class Eagle3Layer(nnx.Module):
    """A decoder layer whose attention reads embedding and feature side by side."""

    def __init__(
        self, config: Eagle3Config, share: DeviceShare, *, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        decoder = config.decoder
        dim, eps = decoder.hidden_size, decoder.norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.self_attn = attention_of(decoder, share, dtype=dtype, rngs=rngs, input_dim=2 * dim)
        self.post_attention_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.mlp = mlp_of(decoder, share, dtype=dtype, rngs=rngs)

    def join(self, embedded: jax.Array, feature: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what attention reads, [2 D, M], and the residual, [D, M], of pairs [D, M]."""
        normed = self.hidden_norm(feature)
        joined = jnp.concatenate([self.input_layernorm(embedded), normed])
        return joined, normed if self.norm_before_residual else feature

    def __call__(
        self,
        embedded: jax.Array,
        feature: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        length: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Maps pairs [D, M] to z [D, M], before any norm; see `Attention` for the rest."""
        joined, residual = self.join(embedded, feature)
        attended, keys, values = self.self_attn(joined, keys, values, length, rope)
        x = residual + attended
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class Eagle3(nnx.Module):
    """An EAGLE-3 drafter, or one device's share of it. Weights only, like `Transformer`."""

    def __init__(
        self, config: Eagle3Config, share: DeviceShare, *, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.config, self.share, self.dtype = config, share, jnp.dtype(dtype)
        dim, eps = config.decoder.hidden_size, config.decoder.norm_eps

        def norm(width: int) -> RMSNorm:
            return RMSNorm(width, eps=eps, dtype=dtype, rngs=rngs)

        def table(has: bool, rows: int) -> nnx.Param | None:
            if not has:
                return None
            return nnx.Param(jax.random.normal(rngs.params(), (rows, dim), dtype) * 0.02)

        self.input_norm = norm(config.features_width) if config.norm_before_fc else None
        self.fc_norm = (
            nnx.List(norm(config.target_hidden_size) for _ in config.feature_layers)
            if config.fc_norm
            else None
        )
        self.fc = (
            Linear(config.features_width, dim, bias=config.fc_bias, dtype=dtype, rngs=rngs)
            if config.has_fc
            else None
        )
        self.layer = Eagle3Layer(config, share, dtype=dtype, rngs=rngs)
        self.norm = norm(dim)
        has_head, is_reduced = config.has_lm_head, config.is_reduced
        self.embed_tokens = table(config.has_embedding, share.vocab_size)
        self.lm_head = table(has_head and not is_reduced, share.vocab_size)
        self.reduced_head = table(has_head and is_reduced, config.draft_vocab_size)

    def fuse(self, features: jax.Array) -> jax.Array:
        """Maps the target's residual streams [B, T, F * D] to features [D, B * T]."""
        x = features.reshape(-1, features.shape[-1]).T.astype(self.dtype)
        if self.input_norm is not None:
            x = self.input_norm(x)
        if self.fc_norm is not None:
            streams = jnp.split(x, len(self.fc_norm))
            x = jnp.concatenate([n(s) for n, s in zip(self.fc_norm, streams, strict=True)])
        return x if self.fc is None else self.fc(x)

    def rope(self, start: jax.Array, num_tokens: int) -> tuple[jax.Array, jax.Array]:
        """Returns the tables [H / 2, B * T] of T pairs a row from position `start` [B]."""
        positions = start[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
        decoder = self.config.decoder
        return rope_tables(decoder.rope, decoder.head_dim, positions.reshape(-1))


class Eagle3Weights(struct.PyTreeNode):
    """All that drafting reads.

    Attributes:
      core: State of an `Eagle3` without its tables.
      embed_tokens: [V, D], the target's array or one of its own; a mesh divides its rows.
      head: [V, D] likewise, or [Vd, D] of a reduced vocabulary, whole on every device.
      token_ids: Target ids of a reduced vocabulary, int32 [Vd], or None.
    """

    core: Any
    embed_tokens: jax.Array
    head: jax.Array
    token_ids: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Program:
    """What the drafter's functions are compiled for; equal ones share compiled programs.

    Attributes:
      graphdef: Of `Eagle3Weights.core`.
      config: Sizes and flags.
      share: What this device holds.
      dtype: Of weights and cache.
      data_axis: Mesh axis that divides requests, or None.
      logits_width: Vocabulary of the logits that are handed out, or None for no logits.
    """

    graphdef: nnx.GraphDef
    config: Eagle3Config
    share: DeviceShare
    dtype: Any
    data_axis: str | None
    logits_width: int | None

    def core(self, weights: Eagle3Weights) -> Eagle3:
        """Returns the module."""
        module: Eagle3 = nnx.merge(self.graphdef, weights.core)
        return module

    def embed(self, weights: Eagle3Weights, tokens: jax.Array) -> jax.Array:
        """Looks up tokens int32 [M]; returns [D, M]."""
        decoder = self.config.decoder
        table = weights.embed_tokens
        return look_up(table, tokens, decoder.vocab_size, self.share.axis).astype(self.dtype)


def run_pairs(
    program: Program,
    weights: Eagle3Weights,
    tokens: jax.Array,
    feature: jax.Array,
    cache: KVCache,
    start: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """Runs T pairs a row behind the first `start` pairs of the cache.

    Args:
      program: The drafter.
      weights: Its weights.
      tokens: int32 [B, T].
      feature: Features or fed-back outputs, [D, B * T].
      cache: With room for T more pairs.
      start: Pairs before these, and the rotary position of the first, int32 [B].

    Returns:
      z, [D, B * T], and the cache with the pairs written and its length unchanged.
    """
    core = program.core(weights)
    z, keys, values = core.layer(
        program.embed(weights, tokens.reshape(-1)),
        feature,
        cache.keys[0],
        cache.values[0],
        start,
        core.rope(start, tokens.shape[1]),
    )
    return z, cache.replace(keys=(keys,), values=(values,))


def remember_pairs(
    program: Program,
    weights: Eagle3Weights,
    tokens: jax.Array,
    feature: jax.Array,
    cache: KVCache,
) -> KVCache:
    """Writes T pairs a row behind the cache's length, which stays: one layer needs no more.

    Args:
      program: As in `run_pairs`.
      weights: As in `run_pairs`.
      tokens: As in `run_pairs`.
      feature: As in `run_pairs`.
      cache: As in `run_pairs`.
    """
    core = program.core(weights)
    joined, _ = core.layer.join(program.embed(weights, tokens.reshape(-1)), feature)
    keys, values = core.layer.self_attn.remember(
        joined,
        cache.keys[0],
        cache.values[0],
        cache.length,
        core.rope(cache.length, tokens.shape[1]),
    )
    return cache.replace(keys=(keys,), values=(values,))


def score(program: Program, weights: Eagle3Weights, normed: jax.Array) -> jax.Array:
    """Scores outputs behind the final norm.

    Args:
      program: The drafter.
      weights: Its weights.
      normed: [D, M].

    Returns:
      Logits [Vd, M], or this device's part [V, M] of a whole vocabulary. Ids that stand for no
      token score -inf.
    """
    decoder = program.config.decoder
    normed = normed.astype(weights.head.dtype)
    num_ids = decoder.num_token_ids or decoder.vocab_size
    if weights.token_ids is None:
        return score_vocabulary(weights.head, normed, num_ids, program.share.axis)
    logits = product(weights.head, normed)
    is_token = weights.token_ids[:, None] < num_ids
    return jnp.where(is_token, logits, jnp.asarray(-jnp.inf, logits.dtype))


def widen(program: Program, weights: Eagle3Weights, logits: jax.Array) -> jax.Array:
    """Spreads logits, as `score` gives them, over the target's vocabulary: float32 [V, M]."""
    assert program.logits_width is not None
    logits = logits.astype(jnp.float32)
    if weights.token_ids is not None:
        empty = jnp.full((program.logits_width, logits.shape[1]), -jnp.inf, jnp.float32)
        return empty.at[weights.token_ids].set(logits)
    if program.share.axis is None:
        return logits
    return jax.lax.all_gather(logits, program.share.axis, axis=0, tiled=True)
