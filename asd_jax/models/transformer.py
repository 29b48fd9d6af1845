"""The dense decoder behind the Llama, Qwen2 and Qwen3 families: weights and forward only."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.cache import KVCache, init_cache
from asd_jax.models.layers import MLP, Attention, RMSNorm, RopeConfig, rope_tables
from asd_jax.types import Target, TargetOutput


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and flags of a dense decoder; hashable, so it is a static jit argument.

    Attributes:
      vocab_size: V.
      hidden_size: D.
      num_layers: L.
      num_heads: N.
      num_kv_heads: K, a divisor of N.
      head_dim: H.
      intermediate_size: Width of the feed-forward network.
      norm_eps: Epsilon of every RMS norm.
      rope: Rotary embedding.
      max_position: Positions that the model was made for.
      qkv_bias: Whether the q, k and v projections have a bias (Qwen2).
      qk_norm: Whether queries and keys are normalised per head before RoPE (Qwen3).
      tie_word_embeddings: Whether the output projection is the embedding.
      feature_layers: Residual streams handed to drafters, as HF hidden_states indices: 0 is the
        embedding, i the output of the i-th layer; all are before the final norm.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeConfig
    max_position: int
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
    feature_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed is >= 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: got {self.num_kv_heads}, allowed is a divisor of num_heads "
                f"{self.num_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}, allowed is an even number >= 2")
        out_of_range = [i for i in self.feature_layers if not 0 <= i <= self.num_layers]
        if out_of_range:
            raise ValueError(f"feature_layers: got {out_of_range}, allowed is 0..{self.num_layers}")


class DecoderLayer(nnx.Module):
    """Attention and feed-forward network, each behind a norm and a residual."""

    def __init__(self, config: TransformerConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        dim, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.self_attn = Attention(
            dim,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            bias=config.qkv_bias,
            qk_norm_eps=config.norm_eps if config.qk_norm else None,
            dtype=dtype,
            rngs=rngs,
        )
        self.post_attention_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.mlp = MLP(dim, config.intermediate_size, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        length: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Maps the residual stream [D, M] to the next one; see `Attention` for the rest."""
        attended, keys, values = self.self_attn(self.input_layernorm(x), keys, values, length, rope)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class Transformer(nnx.Module):
    """A dense decoder. Holds weights only: the cache goes in and comes out."""

    def __init__(
        self, config: TransformerConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        self.config = config
        table = (config.vocab_size, config.hidden_size)
        self.embed_tokens = nnx.Param(jax.random.normal(rngs.params(), table, dtype) * 0.02)
        self.layers = nnx.List(
            DecoderLayer(config, dtype=dtype, rngs=rngs) for _ in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype, rngs=rngs)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nnx.Param(jax.random.normal(rngs.params(), table, dtype) * 0.02)
        )

    def __call__(
        self, tokens: jax.Array, cache: KVCache, logit_rows: jax.Array | None = None
    ) -> TargetOutput:
        """Runs T new tokens a row at positions `cache.length[b] + t`.

        Args:
          tokens: int32 [B, T]; ids outside the vocabulary are clipped into it.
          cache: With room for T slots behind each row's length.
          logit_rows: int32 [B], or None for the logits of all T rows.

        Returns:
          A `TargetOutput`; `cache.length` is unchanged.
        """
        config = self.config
        batch, num_tokens = tokens.shape
        positions = cache.length[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
        rope = rope_tables(config.rope, config.head_dim, positions.reshape(-1))
        x = jnp.take(self.embed_tokens[...], tokens.reshape(-1), axis=0, mode="clip").T

        streams, keys, values = [x], [], []
        for layer, layer_keys, layer_values in zip(
            self.layers, cache.keys, cache.values, strict=True
        ):
            x, layer_keys, layer_values = layer(x, layer_keys, layer_values, cache.length, rope)
            streams.append(x)
            keys.append(layer_keys)
            values.append(layer_values)

        def batch_major(y: jax.Array) -> jax.Array:
            return y.reshape(y.shape[0], batch, num_tokens).transpose(1, 2, 0)

        hidden = self.norm(x)
        scored = hidden
        if logit_rows is not None:
            scored = jnp.take_along_axis(
                hidden.reshape(-1, batch, num_tokens), logit_rows[None, :, None], axis=2
            ).reshape(-1, batch)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits = head[...] @ scored
        logits = logits.reshape(config.vocab_size, batch, -1).transpose(1, 2, 0)
        tapped = [batch_major(streams[i]) for i in config.feature_layers]
        features = (
            jnp.concatenate(tapped, axis=-1)
            if tapped
            else jnp.zeros((batch, num_tokens, 0), x.dtype)
        )
        return TargetOutput(
            logits=logits,
            hidden=batch_major(hidden),
            features=features,
            cache=cache.replace(keys=tuple(keys), values=tuple(values)),
        )


@dataclasses.dataclass(frozen=True)
class _Forward:
    """`Target.forward` of a module definition; equal definitions share compiled programs."""

    graphdef: nnx.GraphDef

    def __call__(
        self,
        params: Any,
        tokens: jax.Array,
        cache: KVCache,
        *,
        logit_rows: jax.Array | None = None,
    ) -> TargetOutput:
        return nnx.merge(self.graphdef, params)(tokens, cache, logit_rows)


@dataclasses.dataclass(frozen=True)
class _InitCache:
    """`Target.init_cache` of a dense decoder."""

    config: TransformerConfig
    dtype: jnp.dtype

    def __call__(self, batch: int, num_slots: int) -> KVCache:
        config = self.config
        return init_cache(
            config.num_layers, batch, config.num_kv_heads, num_slots, config.head_dim, self.dtype
        )


def as_target(model: Transformer) -> Target:
    """Returns the module as a `Target`: weights as leaves, the rest as pure functions."""
    graphdef, params = nnx.split(model)
    config = model.config
    return Target(
        params=params,
        forward=_Forward(graphdef),
        init_cache=_InitCache(config, jnp.dtype(model.embed_tokens.dtype)),
        vocab_size=config.vocab_size,
        context_length=config.max_position,
        vocab_major=True,
    )
