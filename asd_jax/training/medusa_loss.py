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
    decay: float = 0.8,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the sum over heads k of decay^k times the cross-entropy of the token k + 2 on.

    Args:
      heads: The drafter.
      batch: Texts.
      signals: Of which `hidden` is read.
      lm_head: The target's output projection, [V, D], for heads without their own.
      num_ids: Ids that stand for a token.
      decay: Weight of a head relative to the one before it.

    Returns:
      The loss in nats, and `accuracy` of each head, [G].
    """
    hidden = signals.hidden.reshape(-1, signals.hidden.shape[-1]).T
    size = hidden.shape[1]
    num_heads = heads.config.num_used_heads
    shared = None if heads.config.has_output else jax.lax.stop_gradient(lm_head)
    logits = heads(hidden, shared, num_ids)
    total, accuracy = jnp.float32(0), []
    for head in range(num_heads):
        own = logits[:, head * size : (head + 1) * size]
        labels = batch.shifted(head + 2).reshape(-1)
        is_label = batch.is_label(head + 2).reshape(-1)
        total += decay**head * weighted_mean(cross_entropy(own, labels), is_label)
        hit = jnp.argmax(own, axis=0) == labels
        accuracy.append(weighted_mean(hit.astype(jnp.float32), is_label))
    return total, {"accuracy": jnp.stack(accuracy)}
