"""Requests: what a batch of prompts looks like on the device, and how the host builds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from asd_jax import sampling
from asd_jax.sampling import SamplingParams
from asd_jax.types import Controls, Ledger


class Requests(struct.PyTreeNode):
    """A batch of requests. Leaves have a leading [B]; `make_requests` builds it.

    Attributes:
      prompt_tokens: Right-padded prompts, int32 [B, P].
      prompt_length: int32 [B], 1..P.
      max_new_tokens: int32 [B]; 0 marks a padding row, which emits nothing.
      max_draft_tokens: Cap on this request's proposals, int32 [B].
      controls: Leaves [B].
      ledger: Where this request's ledger stands (not zero in a later turn), leaves [B].
      sampling: Leaves [B].
    """

    prompt_tokens: jax.Array
    prompt_length: jax.Array
    max_new_tokens: jax.Array
    max_draft_tokens: jax.Array
    controls: Controls
    ledger: Ledger
    sampling: SamplingParams


def bucket_length(length: int, *, smallest: int = 32) -> int:
    """Returns the padded prompt length for `length` tokens: powers of two and 1.5 times those.

    Few lengths mean few compilations; the steps bound the padding to a third.
    """
    bucket = smallest
    while bucket < length:
        bucket = bucket * 3 // 2 if bucket & (bucket - 1) == 0 else bucket // 3 * 4
    return bucket


def make_requests(
    prompts: Sequence[Sequence[int]],
    *,
    controls: Controls | None = None,
    sampling_params: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int],
    max_draft_tokens: int | Sequence[int] | None = None,
    ledger: Ledger | None = None,
    padded_length: int | None = None,
    batch: int | None = None,
    vocab_size: int | None = None,
) -> Requests:
    """Builds a batch on the host: checks, pads and broadcasts.

    Args:
      prompts: Token ids of each request, at least one each.
      controls: Scalar or [len(prompts)] leaves. Default: `Controls()`.
      sampling_params: Leaves [len(prompts)]. Default: greedy.
      max_new_tokens: >= 1, for all or for each.
      max_draft_tokens: Cap on proposals, for all or for each. Default: no cap.
      ledger: Leaves [len(prompts)], to go on with earlier turns' ledgers. Default: zeros.
      padded_length: P. Default: `bucket_length` of the longest prompt.
      batch: B; missing rows are padding rows that emit nothing. Default: len(prompts).
      vocab_size: If given, ids are checked against it.

    Returns:
      `Requests` with leading [B].

    Raises:
      ValueError: An empty prompt or batch, a prompt longer than `padded_length`, an id outside the
        vocabulary, or a limit out of range; the message names the request by its index.
    """
    count = len(prompts)
    batch = count if batch is None else batch
    if not 1 <= count <= batch:
        raise ValueError(f"prompts: got {count} for a batch of {batch}, allowed is 1..{batch}")
    longest = max(len(prompt) for prompt in prompts)
    padded = bucket_length(longest) if padded_length is None else padded_length
    tokens = np.zeros((batch, padded), np.int32)
    lengths = np.ones((batch,), np.int32)
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= padded:
            raise ValueError(f"prompts[{index}]: got {len(prompt)} tokens, allowed is 1..{padded}")
        ids = np.asarray(prompt)
        if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
            raise ValueError(f"prompts[{index}]: allowed are token ids, whole numbers >= 0")
        if vocab_size is not None and ids.max() >= vocab_size:
            raise ValueError(
                f"prompts[{index}]: got id {ids.max()}, allowed is 0..{vocab_size - 1}"
            )
        tokens[index, : len(prompt)] = ids
        lengths[index] = len(prompt)

    def limits(name: str, value: Any, low: int) -> jax.Array:
        column = np.asarray(value)
        if not np.issubdtype(column.dtype, np.integer) or (column < low).any():
            raise ValueError(f"{name}: got {value!r}, allowed is a whole number >= {low}")
        return _pad_rows(jnp.asarray(np.broadcast_to(column, (count,)), jnp.int32), batch)

    controls = Controls() if controls is None else controls
    no_cap = np.iinfo(np.int32).max
    return Requests(
        prompt_tokens=jnp.asarray(tokens),
        prompt_length=jnp.asarray(lengths),
        max_new_tokens=limits("max_new_tokens", max_new_tokens, 1),
        max_draft_tokens=limits(
            "max_draft_tokens", no_cap if max_draft_tokens is None else max_draft_tokens, 0
        ),
        controls=jax.tree.map(
            lambda leaf: _pad_rows(jnp.broadcast_to(leaf, (count,)), batch), controls
        ),
        ledger=jax.tree.map(
            lambda leaf: _pad_rows(leaf, batch),
            Ledger.zeros((count,)) if ledger is None else ledger,
        ),
        sampling=jax.tree.map(
            lambda leaf: _pad_rows(leaf, batch), sampling_params or sampling.sampling_params(count)
        ),
    )


def _pad_rows(leaf: jax.Array, batch: int) -> jax.Array:
    """Returns a [count] leaf as [batch], missing rows zero."""
    missing = batch - leaf.shape[0]
    if missing == 0:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], missing, axis=0)])
    return jnp.pad(leaf, (0, missing))
