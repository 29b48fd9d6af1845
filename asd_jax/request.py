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

_MAX = int(np.iinfo(np.int32).max)


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

    Raises:
      ValueError: `length` is no whole number >= 0, or `smallest` none >= 2.
    """
    length, smallest = _whole("length", length, 0), _whole("smallest", smallest, 2)
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
      max_new_tokens: 1..2**31 - 1, for all or for each.
      max_draft_tokens: Cap on proposals, for all or for each. Default: no cap.
      ledger: Leaves [len(prompts)], to go on with earlier turns' ledgers. Default: zeros.
      padded_length: P, >= 1. Default: `bucket_length` of the longest prompt.
      batch: B; missing rows are padding rows that emit nothing. Default: len(prompts).
      vocab_size: If given, ids are checked against it.

    Returns:
      `Requests` with leading [B].

    Raises:
      ValueError: No prompt or an empty one, a prompt longer than `padded_length`, an id outside the
        vocabulary, a number that int32 does not hold or that is out of range, or values that are
        not one for each prompt; the message names the field or the request by its index.
    """
    count = _num_prompts(prompts)
    batch = count if batch is None else _whole("batch", batch, 1)
    if count > batch:
        raise ValueError(f"prompts: got {count} for a batch of {batch}, allowed is 1..{batch}")
    num_ids = _MAX if vocab_size is None else _whole("vocab_size", vocab_size, 1)
    columns = [_ids(f"prompts[{i}]", prompt, num_ids) for i, prompt in enumerate(prompts)]
    longest = max(len(column) for column in columns)
    if padded_length is None:
        padded = bucket_length(longest)
    else:
        padded = _whole("padded_length", padded_length, 1)
    tokens = np.zeros((batch, padded), np.int32)
    lengths = np.ones((batch,), np.int32)
    for index, column in enumerate(columns):
        if not 1 <= len(column) <= padded:
            raise ValueError(f"prompts[{index}]: got {len(column)} tokens, allowed is 1..{padded}")
        tokens[index, : len(column)] = column
        lengths[index] = len(column)

    def limits(name: str, value: Any, low: int) -> jax.Array:
        return _pad_rows(jnp.asarray(_limits(name, value, low, count)), batch)

    if controls is None:
        controls = Controls()
    if sampling_params is None:
        sampling_params = sampling.sampling_params(count)
    if ledger is None:
        ledger = Ledger.zeros((count,))
    _check_rows("controls", controls, Controls, [(), (count,)])
    _check_rows("sampling_params", sampling_params, SamplingParams, [(count,)])
    _check_rows("ledger", ledger, Ledger, [(count,)])
    return Requests(
        prompt_tokens=jnp.asarray(tokens),
        prompt_length=jnp.asarray(lengths),
        max_new_tokens=limits("max_new_tokens", max_new_tokens, 1),
        max_draft_tokens=limits(
            "max_draft_tokens", _MAX if max_draft_tokens is None else max_draft_tokens, 0
        ),
        controls=jax.tree.map(
            lambda leaf: _pad_rows(jnp.broadcast_to(leaf, (count,)), batch), controls
        ),
        ledger=jax.tree.map(lambda leaf: _pad_rows(leaf, batch), ledger),
        sampling=jax.tree.map(lambda leaf: _pad_rows(leaf, batch), sampling_params),
    )


def _num_prompts(prompts: Any) -> int:
    """Returns how many prompts there are, at least one."""
    if not isinstance(prompts, (Sequence, np.ndarray, jax.Array)) or isinstance(prompts, str):
        raise ValueError(f"prompts: got {prompts!r}, allowed is a list of lists of token ids")
    if not len(prompts):
        raise ValueError("prompts: got 0, allowed is at least one")
    return len(prompts)


def _whole(name: str, value: Any, low: int) -> int:
    """Returns a whole number from `low` on that int32 holds."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= value <= _MAX:
        raise ValueError(f"{name}: got {value!r}, allowed is a whole number in {low}..{_MAX}")
    return int(value)


def _ids(name: str, prompt: Any, num_ids: int) -> np.ndarray:
    """Returns the token ids of a prompt as int32 [its length]."""
    ids = _host_array(prompt)
    if ids is None or ids.ndim != 1:
        raise ValueError(f"{name}: got {prompt!r}, allowed is a list of token ids")
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"{name}: allowed are token ids, whole numbers in 0..{num_ids - 1}, got "
            f"{ids.dtype} values"
        )
    wrong = ids[(ids < 0) | (ids >= num_ids)] if ids.size else ids
    if wrong.size and wrong.min() < 0:
        raise ValueError(
            f"{name}: allowed are token ids, whole numbers in 0..{num_ids - 1}, got {wrong.min()}"
        )
    if wrong.size:
        raise ValueError(f"{name}: got id {wrong.max()}, allowed is 0..{num_ids - 1}")
    return ids.astype(np.int32)


def _limits(name: str, value: Any, low: int, count: int) -> np.ndarray:
    """Returns one limit for all or one for each as int32 [count]."""
    column = _host_array(value)
    if (
        column is None
        or column.shape not in ((), (count,))
        or not np.issubdtype(column.dtype, np.integer)
        or ((column < low) | (column > _MAX)).any()
    ):
        raise ValueError(
            f"{name}: got {value!r}, allowed is a whole number in {low}..{_MAX}, or one for each "
            f"of the {count} prompts"
        )
    return np.broadcast_to(column.astype(np.int32), (count,))


def _host_array(value: Any) -> np.ndarray | None:
    """Returns an array of the values, None if they do not form one."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # rows of unequal lengths
        return None


def _check_rows(name: str, tree: Any, kind: type, allowed: list[tuple[int, ...]]) -> None:
    """Raises a ValueError unless every leaf has an allowed shape: rows are never made up."""
    if not isinstance(tree, kind):
        raise ValueError(f"{name}: got {tree!r}, allowed is a {kind.__name__}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.shape(leaf) not in allowed:
            shapes = " or ".join(str(list(shape)) for shape in allowed)
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)}: got shape {list(jnp.shape(leaf))}, allowed "
                f"is {shapes}: a value for each prompt"
            )


def _pad_rows(leaf: jax.Array, batch: int) -> jax.Array:
    """Returns a [count] leaf as [batch], missing rows zero."""
    missing = batch - leaf.shape[0]
    if missing == 0:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], missing, axis=0)])
    return jnp.pad(leaf, (0, missing))
