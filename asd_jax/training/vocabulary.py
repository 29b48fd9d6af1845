"""The reduced vocabulary of a drafter: the tokens that answers are made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asd_jax.training.examples import Examples


class Coverage(NamedTuple):
    """Share of the answer tokens that a vocabulary has, in [0, 1]; NaN for a part without any.

    Attributes:
      train: Of the training part.
      held_out: Of the held-out part: what to expect of new answers.
    """

    train: float
    held_out: float


def draft_vocabulary(examples: Examples, size: int, vocab_size: int) -> np.ndarray:
    """Returns the tokens that a drafter may propose.

    These are the stop ids, then the most frequent answer tokens of the training part, then, where
    answers have fewer, the most frequent of its other tokens; lower ids first among equals.

    Args:
      examples: The answers.
      size: Vd, tokens wanted.
      vocab_size: V of the target.

    Returns:
      Ids, ascending, int32 [Vd].

    Raises:
      ValueError: `size` holds no stop id beside another token or is beyond `vocab_size`, or an id
        is.
    """
    labels = examples.labels()
    stop_ids = np.asarray(examples.stop_ids, np.int32)
    largest = max(labels.max(initial=-1), stop_ids.max(initial=-1))
    if largest >= vocab_size:
        raise ValueError(f"vocab_size: got {vocab_size}, allowed is > {largest}, an id in use")
    if not stop_ids.size < size <= vocab_size:
        raise ValueError(
            f"size: got {size}, allowed is {stop_ids.size + 1}..{vocab_size}: more than the stop "
            "ids, at most the target's vocabulary"
        )
    counts = np.bincount(labels, minlength=vocab_size)
    counts[stop_ids] = np.iinfo(counts.dtype).max
    texts = [examples.text(row) for row in examples.rows()]
    seen = np.bincount(np.concatenate([*texts, stop_ids]), minlength=vocab_size)[:vocab_size]
    # Stable, so that equals (the unused ids among them) keep their order.
    order = np.lexsort((-seen, -counts))
    return np.sort(order[:size]).astype(np.int32)


def coverage(examples: Examples, token_ids: np.ndarray) -> Coverage:
    """Returns which share of the answer tokens a vocabulary has.

    Args:
      examples: The answers.
      token_ids: The vocabulary, int32 [Vd].
    """

    def share(held_out: bool) -> float:
        labels = examples.labels(held_out=held_out)
        return float(np.isin(labels, token_ids).mean()) if labels.size else float("nan")

    return Coverage(train=share(False), held_out=share(True))
