"""Medusa-1: each head learns the token that it is to propose (arXiv 2401.10774, section 2.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from asd_jax.drafters.medusa import MedusaHeads
from asd_jax.training.batch import Batch, Signals, cross_entropy, weighted_mean


def medusa_loss(
    heads: MedusaHeads,
    batch: Batch,
    signals: Signals,
    *,
    lm_head: jax.Array,
    num_ids: int,
    token_ids: jax.Array | None = None,
    decay: float = 0.8,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the sum over heads k of decay^k times the cross-entropy of the token k + 2 on.

    Args:
      heads: The drafter.
      batch: Texts.
      signals: Of which `hidden` is read.
      lm_head: The target's output projection, [V, D], for heads without their own; with `token_ids`
        only their rows.
      num_ids: Ids that stand for a token.
      token_ids: Ids among which a label has to be found, ascending, int32 [Vd]; None: all. Labels
        that are not among them do not count.
      decay: Weight of a head relative to the one before it.

    Returns:
      The loss in nats, and `accuracy` of each head, [G].
    """
    hidden = signals.hidden.reshape(-1, signals.hidden.shape[-1]).T
    size = hidden.shape[1]
    num_heads = heads.config.num_used_heads
    shared = None if heads.config.has_output else jax.lax.stop_gradient(lm_head)
    ids = jnp.arange(num_ids, dtype=jnp.int32) if token_ids is None else token_ids
    logits = heads(hidden, shared, ids.shape[0])
    total, accuracy = jnp.float32(0), []
    for head in range(num_heads):
        own = logits[:, head * size : (head + 1) * size]
        labels = batch.shifted(head + 2).reshape(-1)
        is_label = batch.is_label(head + 2).reshape(-1)
        row = jnp.minimum(jnp.searchsorted(ids, labels), ids.shape[0] - 1).astype(jnp.int32)
        counts = is_label & (ids[row] == labels)
        total += decay**head * weighted_mean(cross_entropy(own, row), counts)
        hit = (jnp.argmax(own, axis=0) == row) & counts
        accuracy.append(weighted_mean(hit.astype(jnp.float32), is_label))
    return total, {"accuracy": jnp.stack(accuracy)}
