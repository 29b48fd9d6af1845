"""The ids of a reduced draft vocabulary, from the tables that drafter files have for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def target_ids(
    size: int, vocab_size: int, *, offsets: np.ndarray | None, mask: np.ndarray | None
) -> np.ndarray:
    """Returns the target id of every draft id, int32 [Vd], ascending.

    Either table tells; where there are both, they must agree. Without any, draft ids are target
    ids.

    Args:
      size: Vd.
      vocab_size: V of the target.
      offsets: `d2t`, the distance from a draft id to its target id: whole numbers [Vd].
      mask: `t2d`, which marks the target ids in the same order: bool [V].

    Raises:
      ValueError: They are no such map, or contradict each other.
    """
    marked = None if mask is None else np.flatnonzero(mask)
    if offsets is None:
        ids = np.arange(size) if marked is None else marked
    else:
        if not np.issubdtype(offsets.dtype, np.integer):
            raise ValueError(f"d2t: got {offsets.dtype}, allowed are integers")
        ids = np.arange(len(offsets), dtype=np.int64) + offsets
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= vocab_size or (np.diff(ids) <= 0).any():
        shown = f"{ids.min()}..{ids.max()}" if len(ids) else "none"
        raise ValueError(
            f"d2t: got target ids {shown}, allowed are ascending ids of the target's "
            f"0..{vocab_size - 1}; entries are offsets to their own index"
        )
    if len(ids) != size or (marked is not None and not np.array_equal(ids, marked)):
        count = len(ids) if marked is None else len(marked)
        raise ValueError(
            f"t2d: marks {count} target ids, not the {size} of the draft vocabulary, which d2t "
            "gives where it is there"
        )
    return ids.astype(np.int32)


def target_rows(table: jax.Array, token_ids: np.ndarray) -> jax.Array:
    """Returns some rows of the target's table, whole on every device of its mesh.

    Args:
      table: [V, D].
      token_ids: int32 [Vd].
    """
    sharding = table.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    take = jax.jit(lambda rows, ids: jnp.take(rows, ids, axis=0), out_shardings=sharding)
    return take(table, token_ids)
