"""The authors' calibration: budget and gate from what strict decoding stumbles over.

Every draft token that ended its block under strict verification has a regret, and stood for the
rest of its block: (K - i) / K of it at position i of K. The lower quartile of regret per share is
both the budget and the gate of the authors' normalised scheme, the cap is 1. The verifier here
counts suffix value in tokens, K - i, so the same gate is the quartile over K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.quantile import Barriers, find_barriers, linear_q25
from asd_jax.evaluation.statistics.quantile_interval import q25_interval

BLOCK_CAP = 1
VALUE_SCHEME = "remaining"
_BOOTSTRAP = Bootstrap("percentile", num_resamples=2000)


@dataclasses.dataclass(frozen=True)
class Quartile:
    """What the calibration found.

    Attributes:
      value: The lower quartile of regret per share of a block, logits.
      block_size: K, draft tokens a round.
      num_answers: Strict answers that were looked at.
      num_rounds: Proposals in them.
      num_refusals: Proposals that ended at a refused token, within the answer.
      num_barriers: Those of positive regret, of which `value` is the quartile.
      num_ties: Those of no regret, which are left out.
      num_unpriced: Those without a finite regret, which are left out as well.
      num_short: Barriers in proposals of fewer than K tokens; they keep the shares of K.
      spread: Smallest, lower quartile, median, upper quartile and largest, logits.
      interval: Of `value`, answers being resampled; None with fewer than two that were refused
        anything.
    """

    value: float
    block_size: int
    num_answers: int
    num_rounds: int
    num_refusals: int
    num_barriers: int
    num_ties: int
    num_unpriced: int
    num_short: int
    spread: tuple[float, ...]
    interval: Interval | None

    @property
    def budget(self) -> float:
        """Logits a request."""
        return self.value

    @property
    def gate(self) -> float:
        """Logits a token of suffix value."""
        return raw_gate(self.value, self.block_size)


def raw_gate(normalised: float, block_size: int) -> float:
    """Returns a gate for suffix values in tokens, given one for shares of a block.

    r <= g (K - i) / K and r <= (g / K) (K - i) are the same test: the authors' 2.0625 with K = 5 is
    0.4125 here, their 1.75 with K = 7 is 0.25.

    Args:
      normalised: Logits per whole block.
      block_size: K, 1 or more.

    Raises:
      ValueError: K is smaller.
    """
    if block_size < 1:
        raise ValueError(f"block_size: got {block_size}, needs 1 or more")
    return normalised / block_size


def quartile(rows: Iterable[Mapping[str, Any]]) -> Quartile:
    """Calibrates on strict answers.

    Args:
      rows: Rows of an output file that was made with trace, of arm strict alone.

    Raises:
      ValueError: A row has no trace or another K, or strict decoding was never stopped at a
        positive regret, so that there is nothing to take a quartile of.
    """
    answers = list(rows)
    size = _block_size(answers)
    refusals = [(place, entry) for place, row in enumerate(answers) for entry in row["refusals"]]
    priced = [(place, entry) for place, entry in refusals if entry[3] != "inf"]
    found = _barriers([entry for _, entry in priced], size)
    ratios = found.regret_per_value
    if not ratios.size:
        raise ValueError(
            f"refusals: got {len(refusals)} in {len(answers)} answers, of them none of positive "
            "regret, needs 1 or more: take more questions or longer answers"
        )
    at_quarters = np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1])
    answer_of = np.array([place for place, _ in priced])[found.proposal]
    by_answer = [ratios[answer_of == place] for place in range(len(answers))]
    return Quartile(
        value=linear_q25(ratios),
        block_size=size,
        num_answers=len(answers),
        num_rounds=sum(row["ledger"]["rounds"] for row in answers),
        num_refusals=len(refusals),
        num_barriers=ratios.size,
        num_ties=len(priced) - ratios.size,
        num_unpriced=len(refusals) - len(priced),
        num_short=sum(priced[number][1][2] < size for number in found.proposal),
        spread=tuple(map(float, at_quarters)),
        interval=q25_interval(by_answer, _BOOTSTRAP),
    )


def _block_size(rows: Sequence[Mapping[str, Any]]) -> int:
    if not rows:
        raise ValueError("rows: got none, needs 1 or more")
    for row in rows:
        if "refusals" not in row:
            raise ValueError(f"id {row['id']!r}: refusals: missing, needs a run with trace")
        if row["arm"] != "strict":
            raise ValueError(f"id {row['id']!r}: arm: got {row['arm']!r}, needs 'strict'")
    sizes = {len(row["accept_histogram"]) - 1 for row in rows}
    if len(sizes) > 1 or min(sizes) < 1:
        raise ValueError(
            f"accept_histogram: got those of {sorted(sizes)} draft tokens, needs one size of 1 or "
            "more"
        )
    return sizes.pop()


def _barriers(refusals: Sequence[Sequence[Any]], size: int) -> Barriers:
    """Returns the barriers; a refused token is the only mismatch that its proposal shows."""
    regret = np.zeros((len(refusals), size))
    mismatch = np.zeros((len(refusals), size), np.bool_)
    lengths: npt.NDArray[np.int64] = np.zeros(len(refusals), np.int64)
    for row, (_, place, length, cost) in enumerate(refusals):
        regret[row, place], mismatch[row, place], lengths[row] = cost, True, length
    return find_barriers(regret, mismatch, lengths, block_size=size)
