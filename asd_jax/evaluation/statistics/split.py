"""The authors' split of a task set into calibration, formal and warm-up examples."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random

SEED = 980406
NUM_CALIBRATION = 32
NUM_FORMAL = 500
NUM_WARMUP = 10


@dataclasses.dataclass(frozen=True)
class Split:
    """Which examples serve what; indices into the task set as published.

    Attributes:
      calibration: Examples that settings are chosen on, in the order they are run.
      formal: Examples that results are reported on; none of them is in `calibration`.
      warmup: Run before the clock starts: the first of `calibration`, so that a warm-up shows the
        system no formal example.
      digest: SHA-256 of the whole permutation, in hexadecimal: two splits of the same digest and
        sizes are the same.
    """

    calibration: tuple[int, ...]
    formal: tuple[int, ...]
    warmup: tuple[int, ...]
    digest: str


def split_examples(
    num_examples: int,
    *,
    seed: int = SEED,
    num_calibration: int = NUM_CALIBRATION,
    num_formal: int = NUM_FORMAL,
    num_warmup: int = NUM_WARMUP,
) -> Split:
    """Shuffles the indices of a task set and cuts them in two.

    The defaults, with the 1,319 examples of the GSM8K test set, are the published DeepSeek run's.

    Args:
      num_examples: Size of the task set.
      seed: Of Python's own generator, whose shuffle is the same in every version.
      num_calibration: Taken first.
      num_formal: Taken next.
      num_warmup: Taken from the front of the calibration examples.

    Raises:
      ValueError: A size is negative, the set is too small for both parts, or the calibration part
        is for the warm-up.
    """
    sizes = {
        "num_calibration": num_calibration,
        "num_formal": num_formal,
        "num_warmup": num_warmup,
    }
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name}: got {size}, needs 0 or more")
    if num_calibration + num_formal > num_examples:
        raise ValueError(
            f"num_examples: got {num_examples}, needs num_calibration + num_formal = "
            f"{num_calibration + num_formal} or more"
        )
    if num_warmup > num_calibration:
        raise ValueError(
            f"num_warmup: got {num_warmup}, needs num_calibration = {num_calibration} or less"
        )
    order = list(range(num_examples))
    random.Random(seed).shuffle(order)
    calibration = tuple(order[:num_calibration])
    return Split(
        calibration=calibration,
        formal=tuple(order[num_calibration : num_calibration + num_formal]),
        warmup=calibration[:num_warmup],
        digest=_digest(order),
    )


def _digest(order: list[int]) -> str:
    # Compact JSON and a line end: the bytes of the file whose digest the authors publish.
    text = json.dumps(order, separators=(",", ":")) + "\n"
    return hashlib.sha256(text.encode("ascii")).hexdigest()
