"""Calibration of budget and gate: regret per saved token where strict decoding stops.

The authors decode calibration prompts strictly, look at the first rejected draft token of every
proposal, and take the lower quartile of what each would have cost per token it stood in front of.
That number is both the budget and the normalised gate of their DeepSeek setting.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Barriers:
    """First rejections of positive regret, sorted by `regret_per_value`, ties by `proposal`.

    Attributes:
      proposal: Rows of the input that they come from. int64 [N].
      position: Draft positions of the rejections, from 0. int64 [N].
      regret: In logits. float64 [N].
      value: Share of the block from the rejected token on, (K - position) / K. float64 [N].
      regret_per_value: What `linear_q25` is taken of. float64 [N].
    """

    proposal: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    regret: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    regret_per_value: npt.NDArray[np.float64]


def find_barriers(
    regret: npt.ArrayLike,
    mismatch: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    block_size: int | None = None,
) -> Barriers:
    """Finds what stopped strict decoding in each of R proposals of up to G draft tokens.

    A proposal counts if its first mismatch lies inside its length and has positive regret. Exact
    ties are left out, since strict decoding stops there at no cost.

    Args:
      regret: Of each draft token, in logits; read only at the first mismatch. [R, G].
      mismatch: Where the draft's id is not the target's argmax. bool [R, G].
      lengths: Draft tokens that were verified, 0..G. int [R].
      block_size: The K of the value; G if not given. A proposal cut short keeps the values of the
        whole block.

    Raises:
      ValueError: Shapes do not fit, a length or the block size is out of range, or the regret of a
        first mismatch is negative or not finite.
    """
    regrets = np.asarray(regret, np.float64)
    mismatches = np.asarray(mismatch)
    length = np.asarray(lengths)
    if regrets.ndim != 2 or mismatches.shape != regrets.shape or length.shape != regrets.shape[:1]:
        raise ValueError(
            f"got regret {regrets.shape}, mismatch {mismatches.shape} and lengths {length.shape}, "
            "needs [R, G], [R, G] and [R]"
        )
    if mismatches.dtype != np.bool_:
        raise ValueError(f"mismatch: got {mismatches.dtype}, needs bool")
    num_draft = regrets.shape[1]
    size = num_draft if block_size is None else block_size
    if size < num_draft:
        raise ValueError(f"block_size: got {size}, needs G = {num_draft} or more")
    if np.any((length < 0) | (length > num_draft)):
        raise ValueError(f"lengths: got {length.min()}..{length.max()}, needs 0..{num_draft}")
    inside = mismatches & (np.arange(num_draft) < length[:, None])
    proposal = np.flatnonzero(inside.any(axis=1))
    position = inside[proposal].argmax(axis=1) if num_draft else np.zeros(0, np.int64)
    at_barrier = regrets[proposal, position]
    for row, column, number in zip(proposal, position, at_barrier, strict=True):
        if not 0 <= number < np.inf:
            raise ValueError(
                f"regret: got {number} at proposal {row}, position {column}, "
                "needs a finite number of 0 or more"
            )
    return _sorted_barriers(proposal, position, at_barrier, size)


def _sorted_barriers(
    proposal: npt.NDArray[np.int64],
    position: npt.NDArray[np.int64],
    regret: npt.NDArray[np.float64],
    size: int,
) -> Barriers:
    positive = regret > 0
    proposal, position, regret = proposal[positive], position[positive], regret[positive]
    value = (size - position) / size
    order = np.argsort(regret / value, kind="stable")
    return Barriers(
        proposal=proposal[order],
        position=position[order],
        regret=regret[order],
        value=value[order],
        regret_per_value=(regret / value)[order],
    )


def linear_q25(values: npt.ArrayLike) -> float:
    """Returns the authors' lower quartile: linear between neighbours, at (n - 1) / 4 from 0.

    Args:
      values: In ascending order, positive and finite. [N].

    Raises:
      ValueError: There are none, or they are not of that kind, naming the first that is not.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"values: got shape {numbers.shape}, needs [N] of 1 or more")
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(f"values: got {numbers[i]} at {i}, needs positive finite numbers")
    down = np.diff(numbers) < 0
    if down.any():
        i = int(down.argmax())
        raise ValueError(
            f"values: got {numbers[i + 1]} at {i + 1} behind {numbers[i]}, needs ascending order"
        )
    below, quarters = divmod(numbers.size - 1, 4)
    if not quarters:
        return float(numbers[below])
    share = quarters / 4
    return float(numbers[below] * (1 - share) + numbers[below + 1] * share)
