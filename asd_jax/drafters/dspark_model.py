"""The weights of a DSpark drafter and what one forward of them is. Holds no state.

Source: deepseek-ai/DeepSpec@afdfa7c, `deepspec/modeling/dspark`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.cache import KVCache
from asd_jax.drafters.dspark_config import DsparkConfig
from asd_jax.drafters.markov import MarkovHead
from asd_jax.models.layers import Linear, RMSNorm, look_up, score_vocabulary
from asd_jax.models.product import product
from asd_jax.models.rope import rope_tables
from asd_jax.models.transformer import DecoderLayer, DeviceShare


class Dspark(nnx.Module):
    """The drafter's weights, or one device's share of them."""

    def __init__(
        self, config: DsparkConfig, share: DeviceShare, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.config, self.share = config, share
        decoder = config.decoder
        dim, eps = decoder.hidden_size, decoder.norm_eps
        self.fc = Linear(config.features_size, dim, bias=False, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            DecoderLayer(decoder, share, index=i, dtype=dtype, rngs=rngs)
            for i in range(decoder.num_layers)
        )
        self.norm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)

        def table(rows: int) -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), (rows, dim), dtype) * 0.02)

        reduced = config.reduced_vocab_size
        self.embed_tokens = table(share.vocab_size) if config.has_embedding else None
        self.lm_head = table(share.vocab_size) if config.has_head and reduced is None else None
        # A reduced vocabulary lies whole on every device: hence a path of its own.
        self.reduced_lm_head = table(reduced) if config.has_head and reduced is not None else None
        self.markov = (
            None
            if config.markov_kind is None
            else MarkovHead(
                config.markov_kind,
                config.markov_rank,
                dim,
                num_rows=share.vocab_size,
                num_reduced=reduced,
                vocab_size=decoder.vocab_size,
                axis=share.axis,
                dtype=dtype,
                rngs=rngs,
            )
        )
        has_bias = config.has_confidence_bias
        self.confidence = (
            Linear(config.confidence_size, 1, bias=has_bias, dtype=dtype, rngs=rngs)
            if config.confidence_size
            else None
        )

    @property
    def head_axis(self) -> str | None:
        """Mesh axis that divides the ids that are scored, or None."""
        return None if self.config.reduced_vocab_size is not None else self.share.axis

    def fuse(self, features: jax.Array) -> jax.Array:
        """Fuses tapped streams [B, T, F * D] into context rows, columns [D, B * T]."""
        columns = features.reshape(-1, features.shape[-1]).T
        return self.hidden_norm(self.fc(columns.astype(self.fc.weight.dtype)))

    def remember(self, features: jax.Array, cache: KVCache) -> KVCache:
        """Writes the keys and values of T context rows behind `cache.length`, which stays.

        Context goes to the projections as fused: it has no residual and no input norm.

        Args:
          features: Tapped streams, [B, T, F * D].
          cache: Row b's context, row i at position i.
        """
        context = self.fuse(features)
        rope = self._rope(cache.length, features.shape[1])
        written = [
            layer.self_attn.remember(context, keys, values, cache.length, rope)
            for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True)
        ]
        keys, values = zip(*written, strict=True)
        return cache.replace(keys=keys, values=values)

    def run_block(
        self, embedding: jax.Array | None, anchor: jax.Array, cache: KVCache
    ) -> tuple[jax.Array, KVCache]:
        """Runs the block behind the context: every slot sees all context and all slots.

        The whole trained block is run whatever G is: slots see later slots, too.

        Args:
          embedding: The target's, [V, D], for a drafter without one.
          anchor: int32 [B].
          cache: Context, with room for the block behind `cache.length`.

        Returns:
          Hidden states behind the final norm, [D, B, block], and the cache. The block's own keys
          and values are in it, behind its length: they count for nothing.
        """
        config, batch = self.config, anchor.shape[0]
        masks = jnp.full((batch, config.block_size - 1), config.mask_id, jnp.int32)
        tokens = jnp.concatenate([anchor[:, None], masks], axis=1).reshape(-1)
        table = embedding if self.embed_tokens is None else self.embed_tokens[...]
        assert table is not None
        x = look_up(table, tokens, config.decoder.vocab_size, self.share.axis)
        x = x.astype(self.fc.weight.dtype)
        rope = self._rope(cache.length, config.block_size)
        keys, values = [], []
        for layer, layer_keys, layer_values in zip(
            self.layers, cache.keys, cache.values, strict=True
        ):
            attended, layer_keys, layer_values = layer.self_attn(
                layer.input_layernorm(x),
                layer_keys,
                layer_values,
                cache.length,
                rope,
                is_causal=False,
            )
            x = x + attended
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            keys.append(layer_keys)
            values.append(layer_values)
        hidden = self.norm(x).reshape(-1, batch, config.block_size)
        return hidden, cache.replace(keys=tuple(keys), values=tuple(values))

    def score(
        self, head: jax.Array | None, hidden: jax.Array, token_ids: jax.Array | None
    ) -> jax.Array:
        """Scores hidden states, before the Markov head.

        Args:
          head: The target's output projection, [V, D], for a drafter without one; of a reduced
            vocabulary its rows.
          hidden: [D, M].
          token_ids: Target ids of a reduced vocabulary, or None.

        Returns:
          Logits of the ids on this device, [V, M]; those that stand for no token are -inf.
        """
        if token_ids is not None:
            rows = head if self.reduced_lm_head is None else self.reduced_lm_head[...]
            assert rows is not None
            logits = product(rows, hidden.astype(rows.dtype))
            is_token = token_ids < self.config.num_ids
            return jnp.where(is_token[:, None], logits, jnp.asarray(-jnp.inf, logits.dtype))
        table = head if self.lm_head is None else self.lm_head[...]
        assert table is not None
        return score_vocabulary(
            table, hidden.astype(table.dtype), self.config.num_ids, self.share.axis
        )

    def _rope(self, start: jax.Array, num_tokens: int) -> tuple[jax.Array, jax.Array]:
        """Returns the tables of T positions from `start` [B], columns [H / 2, B * T]."""
        positions = start[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
        return rope_tables(
            self.config.decoder.rope, self.config.decoder.head_dim, positions.ravel()
        )
