"""Which examples a training step sees: a pure function of the seed and the step's number.

A run that is taken up again needs nothing but its step. An epoch is a permutation of the training
part, cut into windows of `WINDOW` batches; a window is sorted by length, so that its batches are of
alike texts, and then all batches of the epoch are shuffled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from asd_jax.request import bucket_length
from asd_jax.training.batch import Batch
from asd_jax.training.examples import Examples

# More batches a window mean less padding and less chance in which examples go together.
WINDOW = 16
_SMALLEST = 64


def padded_lengths(examples: Examples, *, smallest: int = _SMALLEST) -> tuple[int, ...]:
    """Returns the lengths to pad to, ascending: as many programs as a training step has.

    Args:
      examples: At least one.
      smallest: The first of them, tokens; see `bucket_length`.
    """
    buckets, longest = [smallest], int(examples.lengths.max())
    while buckets[-1] < longest:
        buckets.append(bucket_length(buckets[-1] + 1, smallest=smallest))
    return tuple(buckets)


def num_batches(examples: Examples, batch_size: int) -> int:
    """Returns the steps of an epoch."""
    return -(-examples.rows().size // batch_size)


def rows_at(examples: Examples, step: int, *, batch_size: int, seed: int) -> np.ndarray:
    """Returns the examples of a step, int64 [at most batch_size]: one batch an epoch may be short.

    Args:
      examples: Of which the training part is used.
      step: From 0, through all epochs.
      batch_size: B.
      seed: Of the order, >= 0.

    Raises:
      ValueError: `step` or `seed` is negative or `batch_size` not positive.
    """
    for name, value, low in (("step", step, 0), ("seed", seed, 0), ("batch_size", batch_size, 1)):
        if value < low:
            raise ValueError(f"{name}: got {value}, allowed is a whole number >= {low}")
    epoch, place = divmod(step, num_batches(examples, batch_size))
    return _epoch(examples, epoch, batch_size, seed)[place]


# Examples are told apart by identity. Sorting anew in each step would cost milliseconds.
@functools.lru_cache(maxsize=2)
def _epoch(examples: Examples, epoch: int, batch_size: int, seed: int) -> tuple[np.ndarray, ...]:
    """Returns the batches of an epoch in order."""
    draw = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    rows = examples.rows()
    shuffled = rows[_permutation(draw, rows.size)]
    size, lengths = WINDOW * batch_size, examples.lengths
    batches: list[np.ndarray] = []
    for start in range(0, rows.size, size):
        window = shuffled[start : start + size]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += [window[i : i + batch_size] for i in range(0, window.size, batch_size)]
    return tuple(batches[place] for place in _permutation(draw, len(batches)))


def batch_at(
    examples: Examples, step: int, *, batch_size: int, seed: int, buckets: Sequence[int]
) -> Batch:
    """Returns the batch of a step, padded to the first bucket that holds it.

    Args:
      examples: As in `rows_at`.
      step: As in `rows_at`.
      batch_size: As in `rows_at`.
      seed: As in `rows_at`.
      buckets: Padded lengths, ascending; see `padded_lengths`.

    Raises:
      ValueError: As `rows_at`, or an example is longer than the last bucket.
    """
    rows = rows_at(examples, step, batch_size=batch_size, seed=seed)
    return padded_batch(examples, rows, batch_size, buckets)


def held_out_batches(
    examples: Examples, *, batch_size: int, buckets: Sequence[int]
) -> Iterator[Batch]:
    """Yields the held-out part once, short texts first.

    Args:
      examples: Of which the held-out part is used.
      batch_size: B.
      buckets: As in `batch_at`.

    Raises:
      ValueError: As `batch_at`.
    """
    rows = examples.rows(held_out=True)
    rows = rows[np.argsort(examples.lengths[rows], kind="stable")]
    for start in range(0, rows.size, batch_size):
        yield padded_batch(examples, rows[start : start + batch_size], batch_size, buckets)


def _permutation(draw: np.random.PCG64, size: int) -> np.ndarray:
    """Returns a permutation from raw bits, which numpy promises not to change.

    It does not promise so for `Generator.permutation`, and a run must go on after an update.
    """
    return np.argsort(draw.random_raw(size), kind="stable")


def padded_batch(
    examples: Examples, rows: np.ndarray, batch_size: int, buckets: Sequence[int]
) -> Batch:
    """Pads examples to a batch; missing rows are one token without a label.

    Args:
      examples: The texts.
      rows: Some of them, at most B.
      batch_size: B.
      buckets: As in `batch_at`.

    Raises:
      ValueError: An example is longer than the last bucket.
    """
    longest = int(examples.lengths[rows].max())
    padded = next((bucket for bucket in buckets if bucket >= longest), None)
    if padded is None:
        raise ValueError(
            f"buckets: got {tuple(buckets)} for an example of {longest} tokens, allowed are "
            "lengths of which the last holds the longest example"
        )
    tokens = np.zeros((batch_size, padded), np.int32)
    length = np.ones(batch_size, np.int32)
    label_start = np.ones(batch_size, np.int32)
    for at, row in enumerate(rows):
        text = examples.text(row)
        tokens[at, : text.size] = text
        length[at] = text.size
    label_start[: rows.size] = examples.label_start[rows]
    return Batch(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        label_start=jnp.asarray(label_start),
    )
