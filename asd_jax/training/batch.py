"""What a training step sees: texts, which of their tokens are labels, what the target says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct


class Batch(struct.PyTreeNode):
    """Texts, right-padded.

    Attributes:
      tokens: Prompts with answers, int32 [B, T].
      length: Tokens of each, int32 [B].
      label_start: Where the tokens to learn begin, int32 [B].
    """

    tokens: jax.Array
    length: jax.Array
    label_start: jax.Array

    def is_label(self, shift: int) -> jax.Array:
        """Returns where the token `shift` places on is one to learn, bool [B, T]."""
        place = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None, :] + shift
        return (place >= self.label_start[:, None]) & (place < self.length[:, None])

    def shifted(self, shift: int) -> jax.Array:
        """Returns the tokens `shift` places on, int32 [B, T]; 0 behind the end."""
        return jnp.pad(self.tokens[:, shift:], ((0, 0), (0, shift)))


class Signals(struct.PyTreeNode):
    """What the target says of a batch; never differentiated.

    Attributes:
      features: Tapped residual streams, [B, T, F * D].
      hidden: Final-norm hidden states, [B, T, D].
    """

    features: jax.Array
    hidden: jax.Array


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns -log softmax(logits)[labels] in nats, float32 [M].

    Args:
      logits: [V, M].
      labels: int32 [M].
    """
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[None, :], axis=0)[0]
    return jax.nn.logsumexp(logits, axis=0) - picked


def weighted_mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the mean of `values` by `weights`; 0 where all weights are 0."""
    weights = weights.astype(jnp.float32)
    total = jnp.sum(weights)
    return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights) / jnp.maximum(total, 1e-6)
