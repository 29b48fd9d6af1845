"""Random blocks, and what each rival rule must make of them: plain loops over float64 numbers.

Written from the formulas of the papers and engines, not from the vectorised code. A formula that
compares two computed numbers notes how far apart they are (`Position.margins`), so that tests can
leave out what float32 may round either way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax import sampling
from asd_jax.acceptance import (
    fly,
    lenient_thresholds,
    mars,
    medusa_typical,
    rejection_sampling,
    relaxed_top_k,
    static_ensemble,
    token_v3,
)
from asd_jax.scoring import score_drafts
from asd_jax.types import AcceptanceRule, Block
from tests import oracles

G, V, B = 5, 9, 128


@functools.cache
def random_blocks(seed: int, *, temperature: float | None = None, clean: bool = False) -> Block:
    """Draws a batch of blocks: rows with ties and without, cut lengths, odd ids, masks and NaN.

    Args:
      seed: Of the draws.
      temperature: Of all requests; None mixes 0 and 1.
      clean: Whether to leave out ids outside the vocabulary and logits that are not finite.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(B, G + 1, V)) * rng.choice([0.5, 2.0], (B, 1, 1)) + 1
    grid = np.round(logits * 2) / 2
    logits = np.where(rng.random((B, 1, 1)) < 0.5, grid, logits).astype(np.float32)
    draft_logits = (logits[:, :G] + rng.normal(size=(B, G, V))).astype(np.float32)
    if not clean:
        logits[rng.random(logits.shape) < 0.08] = -np.inf  # as top-k leaves it
        logits[rng.random(logits.shape) < 0.003] = np.nan
        logits[rng.random(logits.shape) < 0.002] = np.inf
        draft_logits[rng.random(draft_logits.shape) < 0.08] = -np.inf
        draft_logits[rng.random(draft_logits.shape) < 0.002] = np.nan
    heat = rng.integers(0, 2, B) if temperature is None else np.full(B, temperature)
    noise = np.where(heat[:, None, None] > 0, rng.gumbel(size=logits.shape), 0)
    noise = noise.astype(np.float32)
    noisy = logits + noise
    # The target's token, the drafter's own draw, or any.
    own = np.nan_to_num(draft_logits + noise[:, :G], nan=-np.inf).argmax(-1)
    source = rng.random((B, G))
    tokens = np.where(source < 0.4, np.nan_to_num(noisy[:, :G], nan=np.inf).argmax(-1), own)
    tokens = np.where(source > 0.9, rng.integers(0, V, (B, G)), tokens)
    if not clean:
        tokens = np.where(rng.random((B, G)) < 0.02, rng.choice([-1, V, V + 7], (B, G)), tokens)
    tokens = tokens.astype(np.int32)
    length = np.where(rng.random(B) < 0.7, G, rng.integers(0, G + 1, B)).astype(np.int32)
    return Block(
        draft_tokens=jnp.asarray(tokens),
        draft_length=jnp.asarray(length),
        value_length=jnp.asarray(length),
        draft_logits=jnp.asarray(draft_logits),
        scores=jax.jit(score_drafts)(noisy, tokens),
        logits=jnp.asarray(logits),
        noisy_logits=jnp.asarray(noisy),
        key=jax.vmap(sampling.rule_key, (0, None))(jax.random.split(jax.random.key(seed), B), 3),
        temperature=jnp.asarray(heat, jnp.float32),
    )


@dataclasses.dataclass
class Position:
    """One position as a formula sees it; all numbers float64.

    `z` are the target's logits, `q` the drafter's distribution, `x` the draft token, `y` what plain
    decoding would emit, `u` the coin. `native_behind[k]` says whether the token k + 1 behind is
    native and proposed.
    """

    z: np.ndarray
    q: np.ndarray
    x: int
    y: int
    u: float
    is_sampled: bool
    native_behind: list[bool]
    margins: list[float]

    @functools.cached_property
    def p(self) -> np.ndarray:
        return softmax(self.z)

    @property
    def rank(self) -> int:
        """How many tokens come before x, the lowest id first among equals."""
        order = sorted(range(len(self.z)), key=lambda i: (-self.z[i], i))
        return order.index(self.x)

    def above(self, a: float, b: float, *, or_equal: bool = False) -> bool:
        """Compares a > b and notes how close they are."""
        self.margins.append(abs(a - b))
        return bool(a >= b if or_equal else a > b)


def softmax(z: np.ndarray) -> np.ndarray:
    """Returns probabilities, all NaN where a logit is NaN or +inf."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(z - z.max())
        return weights / weights.sum()


def entropy(p: np.ndarray) -> float:
    return float(-sum(value * np.log(value) for value in p if value > 0))


def medusa_test(at: Position, epsilon: float, alpha: float) -> bool:
    return at.above(at.p[at.x], min(epsilon, alpha * np.exp(-entropy(at.p))))


def relaxed_test(at: Position, top_k: int, delta: float) -> bool:
    return at.rank < top_k and at.above(at.p[at.x], at.p.max() - delta, or_equal=True)


def token_v3_test(at: Position, alpha: float) -> bool:
    return at.above(at.p[at.x], (1 - alpha) * at.p.max(), or_equal=True)


def mars_test(at: Position, theta: float) -> bool:
    z1 = at.z.max()
    return at.rank == 0 or (at.rank == 1 and z1 > 0 and at.above(at.z[at.x] / z1, theta))


def fly_test(at: Position, threshold: float, window: int, top_k: int = 3) -> bool:
    if len(at.native_behind) < window or not all(at.native_behind[:window]):
        return False
    likeliest = sorted(at.p)[::-1][:top_k]
    return at.p[at.x] > 0 and at.above(entropy(np.array(likeliest)), threshold, or_equal=True)


def never(at: Position) -> bool:
    return False


def threshold_test(at: Position, single: float, acc: float) -> bool:
    if not at.is_sampled:
        return False
    by_coin = at.above(at.p[at.x], at.u * acc)
    return at.above(at.p[at.x], single, or_equal=True) or by_coin


def ensemble_test(at: Position, weight: float) -> bool:
    v = weight * at.p + (1 - weight) * at.q
    if np.isnan(v).any():
        return False
    if at.is_sampled:
        return at.above(v[at.x], at.u * at.q[at.x])
    at.margins.extend(abs(v[at.x] - np.delete(v, at.x)))
    return int(v.argmax()) == at.x


@dataclasses.dataclass(frozen=True)
class Case:
    """A rule with what it must do: its own test, and whether it tosses coins."""

    rule: AcceptanceRule
    test: Callable[[Position], bool]
    has_coins: bool = False
    is_point_mass: bool = False
    ignores_protection: bool = False


CASES = {
    "medusa": Case(medusa_typical(), lambda at: medusa_test(at, 0.09, 0.3)),
    "medusa_tight": Case(medusa_typical(0.5, 2.0), lambda at: medusa_test(at, 0.5, 2.0)),
    "relaxed": Case(relaxed_top_k(), lambda at: relaxed_test(at, 1, 0.0)),
    "relaxed_blog": Case(relaxed_top_k(10, 0.6), lambda at: relaxed_test(at, 10, 0.6)),
    "relaxed_tight": Case(relaxed_top_k(2, 0.1), lambda at: relaxed_test(at, 2, 0.1)),
    "token_v3": Case(token_v3(), lambda at: token_v3_test(at, 0.95)),
    "token_v3_tight": Case(token_v3(0.3), lambda at: token_v3_test(at, 0.3)),
    "mars": Case(mars(), lambda at: mars_test(at, 0.9)),
    "mars_loose": Case(mars(0.3), lambda at: mars_test(at, 0.3)),
    "fly": Case(fly(), lambda at: fly_test(at, 0.3, G - 1)),
    "fly_narrow": Case(fly(0.8, window=1), lambda at: fly_test(at, 0.8, 1)),
    "fly_of_two": Case(fly(0.6, 2, 2), lambda at: fly_test(at, 0.6, 2, 2)),
    "rejection": Case(rejection_sampling(), never, has_coins=True, ignores_protection=True),
    "thresholds": Case(
        lenient_thresholds(),
        lambda at: threshold_test(at, 1, 1),
        has_coins=True,
        is_point_mass=True,
    ),
    "thresholds_low": Case(
        lenient_thresholds(0.4, 0.6),
        lambda at: threshold_test(at, 0.4, 0.6),
        has_coins=True,
        is_point_mass=True,
    ),
    "ensemble": Case(static_ensemble(), lambda at: ensemble_test(at, 0.5), has_coins=True),
    "ensemble_heavy": Case(static_ensemble(0.9), lambda at: ensemble_test(at, 0.9), has_coins=True),
}


def coins_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coins [B, G] and the residuals' noise [B, V] that belong to the blocks' keys."""

    def draws(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        coin, residual = jax.random.split(key)
        return jax.random.uniform(coin, (G,)), jax.random.gumbel(residual, (V,))

    coins, noise = jax.device_get(jax.jit(jax.vmap(draws))(block.key))
    return coins.astype(np.float64), noise.astype(np.float64)


def expected(
    case: Case, block: Block, row: int, coins: np.ndarray, noise: np.ndarray, protected: set[int]
) -> tuple[dict, float]:
    """Judges one row, position by position.

    Args:
      case: The rule.
      block: A batch of blocks on the host, without keys.
      row: Which one.
      coins: Its coins [G].
      noise: Its residual's noise [V].
      protected: Protected ids.

    Returns:
      The fields of the verdict by name, and the smallest margin, apart from exact ties.
    """
    draft, n = block.draft_tokens[row].tolist(), int(block.draft_length[row])
    is_sampled, noisy = bool(block.temperature[row] > 0), block.noisy_logits[row]
    target = [int(np.where(np.isnan(z), np.inf, z).argmax()) for z in noisy]
    top = [np.inf if np.isnan(z).any() else z.max() for z in noisy]
    margins: list[float] = []
    protected = set() if case.ignores_protection else protected

    p_rows = [softmax(z) for z in block.logits[row].astype(np.float64)]
    q_rows = [softmax(z) for z in block.draft_logits[row].astype(np.float64)]
    if case.is_point_mass:
        q_rows = [np.eye(V)[x] if 0 <= x < V else np.zeros(V) for x in draft]

    def regret(i: int) -> np.float32:
        with np.errstate(invalid="ignore"):
            return np.float32(top[i] - noisy[i][draft[i]])

    def is_valid(i: int) -> bool:
        return 0 <= draft[i] < V and bool(np.isfinite(regret(i)))

    def is_native(i: int) -> bool:
        if not (case.has_coins and is_sampled):
            return draft[i] == target[i]
        if not is_valid(i):
            return False
        p, q = p_rows[i][draft[i]], q_rows[i][draft[i]]
        margins.append(abs(p - coins[i] * q))
        return bool(p > coins[i] * q)

    kept, reason = 0, oracles.NONE
    for i in range(G):
        if i >= n:
            reason = oracles.END_OF_DRAFT
            break
        if not is_native(i):
            at = Position(
                z=block.logits[row, i].astype(np.float64),
                q=q_rows[i],
                x=draft[i],
                y=target[i],
                u=coins[i],
                is_sampled=is_sampled,
                native_behind=[draft[j] == target[j] and is_valid(j) for j in range(i + 1, n)],
                margins=margins,
            )
            if not is_valid(i):
                reason = oracles.INVALID
            elif draft[i] in protected or target[i] in protected:
                reason = oracles.PROTECTED
            elif not case.test(at):
                reason = oracles.GATE
            if reason != oracles.NONE:
                break
        kept = i + 1

    next_token = target[kept]
    if case.has_coins and is_sampled and kept < n:
        excess = np.maximum(p_rows[kept] - q_rows[kept], 0)
        excess = excess if np.isfinite(excess).all() and excess.sum() > 0 else p_rows[kept]
        with np.errstate(divide="ignore", invalid="ignore"):
            ranking = np.log(excess) + noise
        margins.append(float(np.diff(np.sort(ranking)[-2:])[0]))
        next_token = int(ranking.argmax())
    mask = np.array([i < kept and draft[i] != target[i] for i in range(G)])
    num_strict = 0
    while num_strict < n and draft[num_strict] == target[num_strict]:
        num_strict += 1
    num_finite = 0
    while num_finite <= G and np.isfinite(top[num_finite]):
        num_finite += 1
    verdict = {
        "num_accepted": kept,
        "next_token": next_token,
        "target_tokens": np.array(target),
        "regret": np.array([regret(i) if mask[i] else 0 for i in range(G)], np.float32),
        "exception_mask": mask,
        "num_strict": num_strict,
        "stop_reason": reason,
        "stop_regret": _stop_regret(regret, is_valid, kept, n),
        "is_finite": num_finite > kept,
        "num_finite": num_finite,
    }
    return verdict, min((m for m in margins if m > 0), default=np.inf)


def _stop_regret(regret, is_valid, kept, n):
    """What the refused token would have cost: 0 at the end of the draft, infinite for no token."""
    if kept >= n:
        return np.float32(0)
    value = np.float32(regret(kept)) if is_valid(kept) else np.float32(np.inf)
    return value if np.isfinite(value) else np.float32(np.inf)
