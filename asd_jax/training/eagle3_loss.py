"""EAGLE-3's training-time test: the drafter is unrolled on its own outputs, as when it drafts.

Slot i of step s holds the token at i + 1 + s with the feature of position i (s = 0) or the output
of the step before (s > 0), at rotary position i + s. It sees the first step's slots up to i, as
true features are all that a cache ever holds, and of each later step its own slot only.

Source: arXiv 2503.01840, section 3.2; SafeAILab/EAGLE@cb7e084, `eagle/traineagle3/cnets.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from asd_jax.drafters.eagle3_model import Eagle3
from asd_jax.models.layers import Attention
from asd_jax.models.rope import apply_rope
from asd_jax.training.batch import Batch, Signals, weighted_mean


def eagle3_loss(
    core: Eagle3,
    batch: Batch,
    signals: Signals,
    *,
    embed_tokens: jax.Array,
    head: jax.Array,
    target_head: jax.Array,
    token_ids: jax.Array,
    num_steps: int,
    decay: float = 0.8,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the sum over steps s of decay^s times the cross-entropy with the target.

    A slot counts where the token to predict is an answer's and in the draft vocabulary. (The
    authors ask the latter of the target's argmax, which greedy answers are.)

    Args:
      core: The drafter.
      batch: Texts.
      signals: What the target says of them.
      embed_tokens: The embedding, [V, D].
      head: The drafter's output projection, [Vd, D].
      target_head: The target's, rows of the draft vocabulary, [Vd, D of the target].
      token_ids: Target ids of the draft vocabulary, ascending, int32 [Vd].
      num_steps: Steps unrolled, as many as will be drafted.
      decay: Weight of a step relative to the one before it.

    Returns:
      The loss in nats, and `accuracy` of each step given true steps before it, [S].
    """
    num_rows, num_tokens = batch.tokens.shape
    feature = core.fuse(signals.features)
    attention = core.layer.self_attn
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    in_vocabulary = jnp.zeros((embed_tokens.shape[0],), bool).at[token_ids].set(True)
    # Row i of the target predicts the token at i + 1. Every step reads the same rows, shifted.
    hidden = _columns(signals.hidden)
    teacher = (target_head @ hidden.reshape(hidden.shape[0], -1)).astype(jnp.float32)
    teacher = jax.nn.softmax(teacher, axis=0).reshape(-1, num_rows, num_tokens)
    teacher = jax.lax.stop_gradient(teacher)
    total, accuracy = jnp.float32(0), []
    for step in range(num_steps):
        tokens = batch.shifted(step + 1).reshape(-1)
        embedded = jnp.take(embed_tokens, tokens, axis=0).T.astype(core.dtype)
        joined, residual = core.layer.join(embedded, feature)
        position = jnp.full((num_rows,), step, jnp.int32)
        queries, new_keys, new_values = project(attention, joined, core.rope(position, num_tokens))
        keys.append(new_keys)
        values.append(new_values)
        mixed = _mix(queries, keys, values, num_rows)
        x = residual + attention.o_proj(mixed)
        z = x + core.layer.mlp(core.layer.post_attention_layernorm(x))
        normed = core.norm(z)
        logits = (head @ normed.astype(head.dtype)).astype(jnp.float32)
        log_q = jax.nn.log_softmax(logits, axis=0)
        # The token at i + 2 + step is what the target's row i + 1 + step predicts.
        p = jnp.pad(teacher[:, :, step + 1 :], ((0, 0), (0, 0), (0, step + 1)))
        p = p.reshape(p.shape[0], -1)
        labels = batch.shifted(step + 2).reshape(-1)
        counts = batch.is_label(step + 2).reshape(-1) & in_vocabulary[labels]
        total += decay**step * weighted_mean(-jnp.sum(p * log_q, axis=0), counts)
        hit = token_ids[jnp.argmax(logits, axis=0)] == labels
        is_label = batch.is_label(step + 2).reshape(-1)
        accuracy.append(weighted_mean(hit.astype(jnp.float32), is_label))
        feature = normed if core.config.norm_output else z
    return total, {"accuracy": jnp.stack(accuracy)}


def project(
    attention: Attention, x: jax.Array, rope: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries, keys and values of every head, each [N, H, M], rotated.

    Keys and values are repeated for the query heads that share them.

    Args:
      attention: The layer's.
      x: What it reads, columns [D, M].
      rope: Cosines and sines, [H / 2, M].
    """
    head_dim, group = attention.head_dim, attention.num_heads // attention.num_kv_heads
    q = attention.q_proj(x).reshape(attention.num_heads, head_dim, -1)
    k = attention.k_proj(x).reshape(attention.num_kv_heads, head_dim, -1)
    v = attention.v_proj(x).reshape(attention.num_kv_heads, head_dim, -1)
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k = attention.q_norm(q, axis=1), attention.k_norm(k, axis=1)
    q, k = apply_rope(q, *rope), apply_rope(k, *rope)
    return q, jnp.repeat(k, group, axis=0), jnp.repeat(v, group, axis=0)


def _mix(
    queries: jax.Array, keys: list[jax.Array], values: list[jax.Array], num_rows: int
) -> jax.Array:
    """Attends from the last step's slots, [N, H, B * T], to what they see; [N * H, B * T]."""
    num_heads, head_dim, _ = queries.shape

    def by_row(x: jax.Array) -> jax.Array:
        return x.reshape(num_heads, head_dim, num_rows, -1).astype(jnp.float32)

    q = by_row(queries) * head_dim**-0.5
    first_keys, first_values = by_row(keys[0]), by_row(values[0])
    num_tokens = q.shape[-1]
    slot = jnp.arange(num_tokens, dtype=jnp.int32)
    scores = jnp.einsum("nhbt,nhbs->nbts", q, first_keys)
    scores = jnp.where(slot[None, :] <= slot[:, None], scores, jnp.finfo(jnp.float32).min)
    later = [jnp.sum(q * by_row(k), axis=1)[..., None] for k in keys[1:]]
    weights = jax.nn.softmax(jnp.concatenate([scores, *later], axis=-1), axis=-1)
    mixed = jnp.einsum("nbts,nhbs->nhbt", weights[..., :num_tokens], first_values)
    for index, step_values in enumerate(values[1:]):
        mixed += weights[..., num_tokens + index][:, None] * by_row(step_values)
    return mixed.reshape(num_heads * head_dim, -1).astype(queries.dtype)


def _columns(x: jax.Array) -> jax.Array:
    """Turns [B, T, D] to [D, B, T]."""
    return jnp.moveaxis(x, -1, 0)
