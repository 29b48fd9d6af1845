"""The dense decoder behind the Llama, Qwen2 and Qwen3 families: weights and forward only."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.cache import KVCache, init_cache
from asd_jax.models.layers import MLP, Attention, RMSNorm, look_up, score_vocabulary
from asd_jax.models.ranges import MAX_LAYERS, MAX_WHOLE, is_number, is_whole
from asd_jax.models.rope import RopeConfig, rope_tables
from asd_jax.sharding import Partition
from asd_jax.types import Target, TargetOutput


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and flags of a dense decoder; hashable, so it is a static jit argument.

    Attributes:
      vocab_size: V, rows of the embedding and of the output projection.
      hidden_size: D.
      num_layers: L.
      num_heads: N.
      num_kv_heads: K, a divisor of N.
      head_dim: H.
      intermediate_size: Width of the feed-forward network.
      norm_eps: Epsilon of every RMS norm.
      rope: Rotary embedding.
      max_position: Positions that the model was made for, with its stretched RoPE.
      qkv_bias: Whether the q, k and v projections have a bias (Qwen2).
      output_bias: Whether the attention's output projection has one.
      mlp_bias: Whether the feed-forward network has them.
      qk_norm: Whether queries and keys are normalised per head before RoPE (Qwen3).
      tie_word_embeddings: Whether the output projection is the embedding.
      sliding_window: Tokens that a token of a sliding layer sees, itself included.
      sliding_layers: Those layers, from 0; all others see everything.
      num_token_ids: Ids that stand for a token. The vocabulary's rows behind them are padding,
        whose logits are -inf. None: all rows.
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
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    num_token_ids: int | None = None
    feature_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
        for name in (*sizes, "intermediate_size", "max_position"):
            self._require_whole(name, MAX_WHOLE)
        self._require_whole("num_layers", MAX_LAYERS)
        if self.sliding_window is not None:
            self._require_whole("sliding_window", MAX_WHOLE)
        if not is_number(self.norm_eps, high=1.0):
            raise ValueError(f"norm_eps: got {self.norm_eps!r}, allowed is a number > 0 and <= 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: got {self.num_kv_heads}, allowed is a divisor of num_heads "
                f"{self.num_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}, allowed is an even number >= 2")
        for name, last in (
            ("feature_layers", self.num_layers),
            ("sliding_layers", self.num_layers - 1),
        ):
            wrong = [i for i in getattr(self, name) if not is_whole(i, 0, last)]
            if wrong:
                raise ValueError(f"{name}: got {wrong}, allowed is 0..{last} in whole numbers")
        if self.num_token_ids is not None and not is_whole(self.num_token_ids, 1, self.vocab_size):
            raise ValueError(
                f"num_token_ids: got {self.num_token_ids}, allowed is 1..{self.vocab_size}, the "
                "size of the vocabulary"
            )

    def _require_whole(self, name: str, high: int) -> None:
        value = getattr(self, name)
        if not is_whole(value, 1, high):
            raise ValueError(f"{name}: got {value!r}, allowed is >= 1, a whole number <= {high}")

    def window(self, layer: int) -> int | None:
        """Returns how many tokens a token of the layer sees, or None for all before it."""
        return self.sliding_window if layer in self.sliding_layers else None


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """What one device of the mesh's model axis holds; the whole model where there is no such axis.

    Attributes:
      axis: Name of the mesh axis, or None.
      num_heads: Query heads here.
      num_kv_heads: Key/value heads here.
      intermediate_size: Feed-forward features here.
      vocab_size: Vocabulary rows here.
      kv_copies: Devices that hold the same key/value head.
    """

    axis: str | None
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    kv_copies: int = 1


def device_share(config: TransformerConfig, size: int = 1, axis: str | None = None) -> DeviceShare:
    """Divides a model among the `size` devices of a mesh axis.

    Query heads, feed-forward features and vocabulary rows are divided; so are key/value heads, or
    each stands on `size / K` devices where the axis has more devices than the model has of them.
    The vocabulary is padded to a multiple of `size`.

    Raises:
      ValueError: A size that cannot be divided, named with what is allowed.
    """
    for name in ("num_heads", "intermediate_size"):
        if getattr(config, name) % size:
            raise ValueError(
                f"mesh model axis: got {size}, allowed is a divisor of {name} "
                f"{getattr(config, name)}"
            )
    num_kv_heads = config.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        raise ValueError(
            f"mesh model axis: got {size}, allowed is a divisor or a multiple of num_kv_heads "
            f"{num_kv_heads}"
        )
    return DeviceShare(
        axis=axis if size > 1 else None,
        num_heads=config.num_heads // size,
        num_kv_heads=max(num_kv_heads // size, 1),
        intermediate_size=config.intermediate_size // size,
        vocab_size=-(-config.vocab_size // size),
        kv_copies=max(size // num_kv_heads, 1),
    )


def attention_of(
    config: TransformerConfig,
    share: DeviceShare,
    *,
    dtype: Any,
    rngs: nnx.Rngs,
    input_dim: int | None = None,
    sliding_window: int | None = None,
) -> Attention:
    """Returns a layer's attention, or one device's share of it.

    Args:
      config: The decoder.
      share: What the device holds.
      dtype: Of its weights.
      rngs: For its weights.
      input_dim: Features that it reads. Default: the decoder's width.
      sliding_window: As in `Attention`.
    """
    return Attention(
        config.hidden_size,
        share.num_heads,
        share.num_kv_heads,
        config.head_dim,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        qk_norm_eps=config.norm_eps if config.qk_norm else None,
        dtype=dtype,
        rngs=rngs,
        input_dim=input_dim,
        sliding_window=sliding_window,
        model_axis=share.axis,
    )


def mlp_of(config: TransformerConfig, share: DeviceShare, *, dtype: Any, rngs: nnx.Rngs) -> MLP:
    """Returns a layer's feed-forward network, or one device's share of it."""
    return MLP(
        config.hidden_size,
        share.intermediate_size,
        bias=config.mlp_bias,
        dtype=dtype,
        rngs=rngs,
        model_axis=share.axis,
    )


class DecoderLayer(nnx.Module):
    """Attention and feed-forward network, each behind a norm and a residual."""

    def __init__(
        self,
        config: TransformerConfig,
        share: DeviceShare,
        *,
        index: int,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        dim, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.self_attn = attention_of(
            config, share, dtype=dtype, rngs=rngs, sliding_window=config.window(index)
        )
        self.post_attention_layernorm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
        self.mlp = mlp_of(config, share, dtype=dtype, rngs=rngs)

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
    """A dense decoder, or one device's share of it. Holds weights only: the cache goes in and out.

    With a share of a mesh axis the call must run inside `jax.shard_map` over that axis; its logits
    are then those of this device's vocabulary rows, everything else is the same on every device.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        share: DeviceShare | None = None,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.config = config
        self.share = share = device_share(config) if share is None else share
        table = (share.vocab_size, config.hidden_size)
        self.embed_tokens = nnx.Param(jax.random.normal(rngs.params(), table, dtype) * 0.02)
        self.layers = nnx.List(
            DecoderLayer(config, share, index=i, dtype=dtype, rngs=rngs)
            for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype, rngs=rngs)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nnx.Param(jax.random.normal(rngs.params(), table, dtype) * 0.02)
        )

    def __call__(
        self,
        tokens: jax.Array,
        cache: KVCache,
        logit_rows: jax.Array | None = None,
        feature_layers: tuple[int, ...] | None = None,
    ) -> TargetOutput:
        """Runs T new tokens a row at positions `cache.length[b] + t`.

        Args:
          tokens: int32 [B, T]; ids outside the vocabulary are clipped into it.
          cache: With room for T slots behind each row's length.
          logit_rows: int32 [B], or None for the logits of all T rows.
          feature_layers: Residual streams to hand out, static; see `Target.forward`.

        Returns:
          A `TargetOutput`; `cache.length` is unchanged.
        """
        config = self.config
        batch, num_tokens = tokens.shape
        positions = cache.length[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
        rope = rope_tables(config.rope, config.head_dim, positions.reshape(-1))
        axis = self.share.axis
        x = look_up(self.embed_tokens[...], tokens.reshape(-1), config.vocab_size, axis)

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
        num_ids = config.num_token_ids or config.vocab_size
        logits = score_vocabulary(head[...], scored, num_ids, axis)
        logits = logits.reshape(self.share.vocab_size, batch, -1).transpose(1, 2, 0)
        layers = config.feature_layers if feature_layers is None else feature_layers
        tapped = [batch_major(streams[i]) for i in layers]
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
        feature_layers: tuple[int, ...] | None = None,
    ) -> TargetOutput:
        return nnx.merge(self.graphdef, params)(tokens, cache, logit_rows, feature_layers)


@dataclasses.dataclass(frozen=True)
class _InitCache:
    """`Target.init_cache` of a dense decoder."""

    config: TransformerConfig
    share: DeviceShare
    dtype: jnp.dtype

    def __call__(self, batch: int, num_slots: int) -> KVCache:
        config, heads = self.config, self.share.num_kv_heads
        return init_cache(config.num_layers, batch, heads, num_slots, config.head_dim, self.dtype)


def as_target(model: Transformer, partition: Partition | None = None) -> Target:
    """Returns the module as a `Target`: weights as leaves, the rest as pure functions.

    Args:
      model: Whole, or one device's share with weights [...] of the whole mesh.
      partition: Where the weights lie, for a share.
    """
    graphdef, params = nnx.split(model)
    config = model.config
    return Target(
        params=params,
        forward=_Forward(graphdef),
        init_cache=_InitCache(config, model.share, jnp.dtype(model.embed_tokens.dtype)),
        vocab_size=config.num_token_ids or config.vocab_size,
        context_length=config.max_position,
        vocab_major=True,
        partition=partition,
    )


# Parameter paths (regex) -> logical axes; `asd_jax.sharding.RULES` says where those lie.
PARAM_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embed_tokens|lm_head", ("vocab", "embed")),
    (r".*/q_proj/weight", ("heads", "embed")),
    (r".*/q_proj/bias", ("heads",)),
    (r".*/[kv]_proj/weight", ("kv_heads", "embed")),
    (r".*/[kv]_proj/bias", ("kv_heads",)),
    (r".*/o_proj/weight", ("embed", "heads")),
    (r".*/(gate|up)_proj/weight", ("mlp", "embed")),
    (r".*/(gate|up)_proj/bias", ("mlp",)),
    (r".*/down_proj/weight", ("embed", "mlp")),
    (r".*/(o|down)_proj/bias", ("embed",)),
    (r".*norm/weight", ("embed",)),
)
