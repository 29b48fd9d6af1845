"""P-values of the null hypothesis that a bounded loss has a mean of epsilon or more.

All hold for any finite number of independent examples, whatever the loss is distributed like
within its range: if the null hypothesis is true, P(p-value <= u) <= u for every u.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]
METHODS = ("hoeffding_bentkus", "binomial", "betting")


def p_values(
    losses: npt.ArrayLike,
    epsilon: float,
    method: str = "hoeffding_bentkus",
    *,
    loss_range: tuple[float, float] = (0.0, 1.0),
    level: float = 0.1,
) -> Floats:
    """Returns the p-value of each row of losses: [..., N] to [...].

    Losses of another range are mapped to [0, 1] by an affine map, and epsilon with them, which
    changes neither hypothesis. Signed losses that are nearly all 0 sit at 1/2 after that, where
    Hoeffding's and Bentkus' bounds, blind to their small variance, are weak: use `betting` there.

    Args:
      losses: Of N independent examples. [..., N].
      epsilon: In units of the loss, inside `loss_range`.
      method: `hoeffding_bentkus`, any losses; `binomial`, losses at the two ends of the range only,
        exact; `betting`, any losses in the order they were drawn, adapts to their variance.
      loss_range: Smallest and largest possible loss.
      level: What the p-value will be compared with, roughly; `betting` sizes its bets by it and
        holds for any.

    Raises:
      ValueError: A shape, number or name is none of these, or a loss lies outside its range.
    """
    low, high = loss_range
    if not -np.inf < low < high < np.inf:
        raise ValueError(f"loss_range: got {loss_range}, needs two finite numbers, ascending")
    if not low < epsilon < high:
        raise ValueError(f"epsilon: got {epsilon}, needs a number between {low} and {high}")
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, needs a number between 0 and 1")
    raw = np.asarray(losses, np.float64)
    if not raw.ndim or not raw.shape[-1]:
        raise ValueError(f"losses: got shape {raw.shape}, needs [..., N] of 1 or more")
    outside = ~((raw >= low) & (raw <= high))
    if outside.any():
        raise ValueError(f"losses: got {raw[outside][0]}, needs {low}..{high}")
    unit, mapped = (raw - low) / (high - low), (epsilon - low) / (high - low)
    num = raw.shape[-1]
    if method == "hoeffding_bentkus":
        return hoeffding_bentkus(unit.sum(axis=-1), num, mapped)
    if method == "betting":
        return betting(unit, mapped, level=level)
    if method != "binomial":
        raise ValueError(f"method: got {method!r}, needs one of {', '.join(METHODS)}")
    between = (unit > 0) & (unit < 1)
    if between.any():
        raise ValueError(f"losses: got {raw[between][0]}, binomial needs {low} or {high}")
    return binomial(unit.sum(axis=-1), num, mapped)


def hoeffding_bentkus(total: npt.ArrayLike, num: int, epsilon: float) -> Floats:
    """Returns Hoeffding's and Bentkus' bounds, the better of the two.

    Proposition 1 of arXiv 2110.01052, first in Bates et al., "Distribution-Free, Risk-Controlling
    Prediction Sets" (arXiv 2101.02703).

    Args:
      total: Sums of `num` losses in [0, 1]. Any shape.
      num: Examples.
      epsilon: In (0, 1).
    """
    sums = np.asarray(total, np.float64)
    mean = np.minimum(sums / num, epsilon)
    divergence = special.rel_entr(mean, epsilon) + special.rel_entr(1 - mean, 1 - epsilon)
    bentkus = np.e * special.bdtr(np.ceil(sums), num, epsilon)
    return np.minimum(np.minimum(np.exp(-num * divergence), bentkus), 1.0)


def binomial(total: npt.ArrayLike, num: int, epsilon: float) -> Floats:
    """Returns P(Bin(num, epsilon) <= total), exact for losses that are 0 or 1.

    Args:
      total: Losses of 1 among `num`. Any shape.
      num: Examples.
      epsilon: In (0, 1).
    """
    return np.asarray(special.bdtr(np.asarray(total, np.float64), num, epsilon), np.float64)


def betting(losses: npt.ArrayLike, epsilon: float, *, level: float = 0.1) -> Floats:
    """Returns 1 / (the most that a gambler against the null hypothesis ever held, from 1).

    Each bet is on the next loss being below epsilon and is sized by the mean and variance of the
    losses before it; under the null hypothesis no such gambler gains (Ville's inequality).
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"
    (arXiv 2010.09686), section 4.

    Args:
      losses: In [0, 1], in the order they were drawn. [..., N].
      epsilon: In (0, 1).
      level: In (0, 1); what the bets are sized for.
    """
    rows = np.asarray(losses, np.float64)
    num = rows.shape[-1]
    seen = np.arange(1, num + 1)
    mean = (0.5 + np.cumsum(rows, axis=-1)) / (seen + 1)
    variance = (0.25 + np.cumsum((rows - mean) ** 2, axis=-1)) / (seen + 1)
    # A bet may only know what came before it.
    before = np.concatenate([np.full_like(variance[..., :1], 0.25), variance[..., :-1]], axis=-1)
    # At 1 / (1 - epsilon) a loss of 1 takes everything; less than it leaves some to go on with.
    bets = np.minimum(np.sqrt(2 * np.log(1 / level) / (num * before)), 0.75 / (1 - epsilon))
    wealth = np.cumsum(np.log1p(bets * (epsilon - rows)), axis=-1)
    return np.exp(-np.maximum(wealth.max(axis=-1), 0.0))
