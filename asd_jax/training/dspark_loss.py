"""DSpark's loss: blocks at random anchors of a text, all in one forward.

Each block sees the context before its anchor and its own slots. Slot k is to predict the token at
anchor + 1 + k, given the true tokens before it: cross-entropy with the token, the full L1 distance
to the target's distribution, and the confidence head's cross-entropy with the acceptance that this
distance implies. Slot k weighs exp(-k / decay).

Source: deepseek-ai/DeepSpec@afdfa7c, `deepspec/train`; arXiv 2607.05147, section 3.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from asd_jax.drafters.dspark_model import Dspark
from asd_jax.models.layers import Attention
from asd_jax.models.rope import rope_tables
from asd_jax.training.batch import Batch, Signals, cross_entropy, weighted_mean
from asd_jax.training.eagle3_loss import project


@dataclasses.dataclass(frozen=True)
class DsparkWeights:
    """Weights of the parts of the loss; the defaults are DeepSpec's."""

    cross_entropy: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0


def sample_anchors(key: jax.Array, batch: Batch, num_anchors: int) -> tuple[jax.Array, jax.Array]:
    """Draws anchors without replacement among tokens of the answer that are followed by another.

    Args:
      key: Consumed.
      batch: Texts.
      num_anchors: A.

    Returns:
      Positions, int32 [B, A], and which of them are real, bool [B, A]: short answers have fewer.
    """
    # The anchor may be the first token of the answer, which the prefill emits.
    allowed = batch.is_label(0) & batch.is_label(1)
    noise = jax.random.uniform(key, allowed.shape)
    order = jnp.argsort(jnp.where(allowed, noise, 2.0), axis=1)[:, :num_anchors]
    return order.astype(jnp.int32), jnp.take_along_axis(allowed, order, axis=1)


def dspark_loss(
    module: Dspark,
    batch: Batch,
    signals: Signals,
    anchors: jax.Array,
    is_real: jax.Array,
    *,
    embed_tokens: jax.Array,
    lm_head: jax.Array,
    token_ids: jax.Array | None = None,
    loss_weights: DsparkWeights = DsparkWeights(),
    decay: float = 4.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the sum of CE, L1 and the confidence's BCE, weighted means over all slots.

    Args:
      module: The drafter.
      batch: Texts.
      signals: What the target says of them.
      anchors: int32 [B, A].
      is_real: bool [B, A].
      embed_tokens: The target's embedding, [V, D], for a drafter without its own.
      lm_head: The target's output projection, [V, D], or its rows of the reduced vocabulary.
      token_ids: Target ids of a reduced vocabulary, or None.
      loss_weights: Of the three parts.
      decay: Slots after which the weight has fallen to 1 / e.

    Returns:
      The loss, and `accuracy` (argmax equals the token) and `acceptance` (1 - L1 / 2) of each slot
      given true tokens before it, [G].
    """
    config = module.config
    num_rows, num_anchors = anchors.shape
    num_slots = config.block_size
    hidden = run_blocks(module, batch, signals, anchors, embed_tokens)  # [D, B * A * block]

    slot = jnp.arange(num_slots, dtype=jnp.int32)
    place = anchors[..., None] + slot[None, None, :]  # of the token before the one to predict
    text = jnp.pad(batch.tokens, ((0, 0), (0, num_slots + 1)))

    def at(offset: int) -> jax.Array:
        index = (place + offset).reshape(num_rows, -1)
        return jnp.take_along_axis(text, index, axis=1).reshape(-1)

    before, labels = at(0), at(1)
    counts = is_real[..., None] & (place + 1 < batch.length[:, None, None])
    if token_ids is not None:  # a label outside of the vocabulary cannot be learnt
        in_vocabulary = jnp.zeros((config.decoder.vocab_size,), bool).at[token_ids].set(True)
        row = jnp.searchsorted(token_ids, labels).astype(jnp.int32)
        row = jnp.minimum(row, token_ids.shape[0] - 1)
        counts &= in_vocabulary[labels].reshape(counts.shape)
    else:
        row = labels
    fading = jnp.exp(-slot.astype(jnp.float32) / decay)[None, None, :]
    weights = jnp.where(counts, fading, jnp.float32(0)).reshape(-1)

    logits = module.score(lm_head, hidden, token_ids).astype(jnp.float32)
    embedded = None
    if module.markov is not None:
        embedded = module.markov.embed(before).astype(hidden.dtype)
        bias = _markov_bias(module, hidden, embedded, (num_rows, num_anchors, num_slots))
        logits = logits + bias.astype(jnp.float32)
    q = jax.nn.softmax(logits, axis=0)

    # Row anchor + k of the target predicts the token at anchor + k + 1.
    rows = jnp.take_along_axis(
        jnp.pad(signals.hidden, ((0, 0), (0, num_slots + 1), (0, 0))),
        place.reshape(num_rows, -1, 1),
        axis=1,
    )
    teacher = (lm_head @ rows.reshape(-1, rows.shape[-1]).T).astype(jnp.float32)
    if token_ids is None:
        is_token = jnp.arange(teacher.shape[0], dtype=jnp.int32) < config.num_ids
        teacher = jnp.where(is_token[:, None], teacher, -jnp.inf)
    p = jax.lax.stop_gradient(jax.nn.softmax(teacher, axis=0))
    distance = jnp.sum(jnp.abs(q - p), axis=0)

    total = loss_weights.cross_entropy * weighted_mean(cross_entropy(logits, row), weights)
    total += loss_weights.l1 * weighted_mean(distance, weights)
    acceptance = jax.lax.stop_gradient(1 - 0.5 * distance)
    if module.confidence is not None:
        read = hidden if embedded is None else jnp.concatenate([hidden, embedded])
        sure = module.confidence(read[: module.confidence.weight.shape[1]])[0].astype(jnp.float32)
        bce = jax.nn.softplus(sure) - acceptance * sure
        total += loss_weights.confidence * weighted_mean(bce, weights)

    def by_slot(values: jax.Array) -> jax.Array:
        values = values.reshape(-1, num_slots).astype(jnp.float32)
        mask = counts.reshape(-1, num_slots).astype(jnp.float32)
        return jnp.sum(values * mask, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1)

    hit = jnp.argmax(logits, axis=0) == row
    return total, {"accuracy": by_slot(hit), "acceptance": by_slot(acceptance)}


def run_blocks(
    module: Dspark,
    batch: Batch,
    signals: Signals,
    anchors: jax.Array,
    embed_tokens: jax.Array,
) -> jax.Array:
    """Runs all blocks of all texts at once.

    Args:
      module: As in `dspark_loss`.
      batch: As in `dspark_loss`.
      signals: As in `dspark_loss`.
      anchors: int32 [B, A].
      embed_tokens: As in `dspark_loss`.

    Returns:
      Hidden states behind the final norm, columns [D, B * A * block].
    """
    config = module.config
    num_rows, num_anchors = anchors.shape
    num_tokens, num_slots = batch.tokens.shape[1], config.block_size
    rope, head_dim = config.decoder.rope, config.decoder.head_dim
    context = module.fuse(signals.features)
    positions = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32), (num_rows, num_tokens))
    context_rope = rope_tables(rope, head_dim, positions.reshape(-1))
    place = anchors[..., None] + jnp.arange(num_slots, dtype=jnp.int32)[None, None, :]
    block_rope = rope_tables(rope, head_dim, place.reshape(-1))

    anchor_tokens = jnp.take_along_axis(batch.tokens, anchors, axis=1)[..., None]
    masks = jnp.full((num_rows, num_anchors, num_slots - 1), config.mask_id, jnp.int32)
    tokens = jnp.concatenate([anchor_tokens, masks], axis=-1).reshape(-1)
    table = embed_tokens if module.embed_tokens is None else module.embed_tokens[...]
    x = jnp.take(table, tokens, axis=0).T.astype(context.dtype)
    is_context = positions[:, None, :] < anchors[..., None]  # [B, A, T]
    for layer in module.layers:
        mixed = _mix_blocks(
            layer.self_attn,
            context,
            context_rope,
            layer.input_layernorm(x),
            block_rope,
            is_context,
            num_slots,
        )
        x = x + layer.self_attn.o_proj(mixed)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return module.norm(x)


def _mix_blocks(
    attention: Attention,
    context: jax.Array,
    context_rope: tuple[jax.Array, jax.Array],
    x: jax.Array,
    block_rope: tuple[jax.Array, jax.Array],
    is_context: jax.Array,
    num_slots: int,
) -> jax.Array:
    """Attends from all slots of all blocks to their context and their own block."""
    num_rows, num_anchors, num_tokens = is_context.shape
    _, context_keys, context_values = project(attention, context, context_rope)
    queries, keys, values = project(attention, x, block_rope)
    num_heads, head_dim, _ = queries.shape

    def blocks(y: jax.Array) -> jax.Array:
        shape = (num_heads, head_dim, num_rows, num_anchors, num_slots)
        return y.reshape(shape).astype(jnp.float32)

    def rows(y: jax.Array) -> jax.Array:
        return y.reshape(num_heads, head_dim, num_rows, num_tokens).astype(jnp.float32)

    q = blocks(queries) * head_dim**-0.5
    to_context = jnp.einsum("nhbas,nhbt->nbast", q, rows(context_keys))
    lowest = jnp.finfo(jnp.float32).min
    to_context = jnp.where(is_context[None, :, :, None, :], to_context, lowest)
    to_block = jnp.einsum("nhbas,nhbar->nbasr", q, blocks(keys))
    weights = jax.nn.softmax(jnp.concatenate([to_context, to_block], axis=-1), axis=-1)
    mixed = jnp.einsum("nbast,nhbt->nhbas", weights[..., :num_tokens], rows(context_values))
    mixed += jnp.einsum("nbasr,nhbar->nhbas", weights[..., num_tokens:], blocks(values))
    return mixed.reshape(num_heads * head_dim, -1).astype(x.dtype)


def _markov_bias(
    module: Dspark, hidden: jax.Array, embedded: jax.Array, shape: tuple[int, int, int]
) -> jax.Array:
    """Returns what the Markov head adds, [V, B * A * block], with the true tokens before."""
    assert module.markov is not None
    num_rows, num_anchors, num_slots = shape

    def by_slot(y: jax.Array) -> list[jax.Array]:
        y = y.reshape(-1, num_rows * num_anchors, num_slots)
        return [y[..., k] for k in range(num_slots)]

    state = jnp.zeros((module.markov.rank, num_rows * num_anchors), hidden.dtype)
    biases = []
    for slot_embedded, slot_hidden in zip(by_slot(embedded), by_slot(hidden), strict=True):
        state, bias = module.markov.step(state, slot_embedded, slot_hidden)
        biases.append(bias)
    return jnp.stack(biases, axis=-1).reshape(biases[0].shape[0], -1)
