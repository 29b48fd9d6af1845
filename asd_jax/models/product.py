"""The one product that all layers are made of, and how wide it is best on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# XLA's CPU products work on columns in eights, and are slow with those left over: on AVX2 six cost
# a fifth more than eight, and fourteen as much as thirty-two. Up to four there is nothing to gain.
_BLOCK, _FEW = 8, 4


def product(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Returns weight @ x; on a CPU with zero columns added up to a number that is quick.

    Args:
      weight: [out, in].
      x: [in, M].
    """
    missing = -x.shape[1] % _BLOCK
    if not missing or x.shape[1] <= _FEW:
        return weight @ x

    def padded(weight: jax.Array, x: jax.Array) -> jax.Array:
        return (weight @ jnp.pad(x, ((0, 0), (0, missing))))[:, : x.shape[1]]

    result: jax.Array = jax.lax.platform_dependent(weight, x, cpu=padded, default=jnp.matmul)
    return result
