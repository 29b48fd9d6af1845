"""The two value schemes of ASD at the same controls: what a logit of regret buys in each.

*Extra tokens* are those that a setting emits beyond what as many forwards of strict decoding yield:
T - R * T_s / R_s, with T tokens and R rounds, those of strict decoding with an s, taken task by
task and added up. *Tokens per logit* are extra tokens over regret spent; *loss per token* is right
answers lost over extra tokens, on graded tasks. Requests are resampled within tasks, both schemes
and strict decoding together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.measures import Measures
from asd_jax.evaluation.calibration.grid import Setting
from asd_jax.evaluation.frontier.points import Floats, Indices, gained, stratified, sums
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval

Tasks = Mapping[str, Measures]
BASE, OTHER = "remaining", "realised"


@dataclasses.dataclass(frozen=True)
class Worth:
    """What a scheme's regret came to.

    Attributes:
      extra_tokens_per_answer: None if strict decoding has no rounds.
      regret_per_answer: Logits.
      tokens_per_logit: None if (in some resamples) nothing was spent.
      loss_per_token: Right answers lost for each extra token; None where the interval of the extra
        tokens reaches 0, as then there is no quotient, or where no task has right answers.
    """

    extra_tokens_per_answer: Interval | None
    regret_per_answer: Interval | None
    tokens_per_logit: Interval | None
    loss_per_token: Interval | None


@dataclasses.dataclass(frozen=True)
class Contrast:
    """Both schemes at the same controls.

    Attributes:
      remaining: The paper's scheme.
      realised: The other.
      tokens_per_logit_difference: Realised less remaining, paired; None where either is.
      loss_per_token_difference: Likewise; below 0 realised does less harm.
    """

    remaining: Worth
    realised: Worth
    tokens_per_logit_difference: Interval | None
    loss_per_token_difference: Interval | None


@dataclasses.dataclass(frozen=True)
class Schemes:
    """The comparison of the schemes.

    Attributes:
      settings: At each setting.
      pooled: All settings together: sums over all of them.
      num_requests: Examples.
      verdict: In words.
    """

    settings: Mapping[Setting, Contrast]
    pooled: Contrast
    num_requests: int
    verdict: str


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    """One task under one scheme, sums over settings, [N] each; no `lost` without right answers."""

    tokens: Floats
    rounds: Floats
    spent: Floats
    lost: Floats | None
    strict_tokens: Floats
    strict_rounds: Floats


def compare_schemes(
    remaining: Mapping[Setting, Tasks], realised: Mapping[Setting, Tasks], bootstrap: Bootstrap
) -> Schemes:
    """Compares the schemes at each setting and over all of them.

    Args:
      remaining: Measures by setting and task under the paper's scheme.
      realised: Likewise under the other, for the same settings and requests.
      bootstrap: How to resample.

    Raises:
      AuditError: There is no setting, or the schemes have different ones.
    """
    if not remaining or remaining.keys() != realised.keys():
        raise AuditError(
            f"settings: got {len(remaining)} and {len(realised)} that are not the same, allowed "
            "are 1 or more, the same for both"
        )
    settings = {
        setting: _contrast([remaining[setting]], [realised[setting]], bootstrap)
        for setting in remaining
    }
    pooled = _contrast(list(remaining.values()), list(realised.values()), bootstrap)
    some = next(iter(remaining.values()))
    num_requests = sum(task.asd.tokens.size for task in some.values())
    return Schemes(settings, pooled, num_requests, _verdict(pooled, len(settings), num_requests))


def _contrast(
    remaining: Sequence[Tasks], realised: Sequence[Tasks], bootstrap: Bootstrap
) -> Contrast:
    base, other = _pool(remaining), _pool(realised)
    worth = [_worth(works, len(remaining), bootstrap) for works in (base, other)]

    def difference(
        of: Callable[[Sequence[_Work], Sequence[Indices]], Floats],
        old: Sequence[_Work],
        new: Sequence[_Work],
    ) -> Interval | None:
        return stratified(lambda *drawn: of(new, drawn) - of(old, drawn), _sizes(old), bootstrap)

    has_logits = all(one.tokens_per_logit is not None for one in worth)
    has_loss = all(one.loss_per_token is not None for one in worth)
    return Contrast(
        remaining=worth[0],
        realised=worth[1],
        tokens_per_logit_difference=(
            difference(_tokens_per_logit, base, other) if has_logits else None
        ),
        loss_per_token_difference=(
            difference(_loss_per_token, _graded(base), _graded(other)) if has_loss else None
        ),
    )


def _pool(settings: Sequence[Tasks]) -> list[_Work]:
    """Returns one `_Work` a task; strict decoding's answers are the same under every setting."""
    works = []
    for name, first in settings[0].items():
        tasks = [setting[name] for setting in settings]
        gains = [gain for task in tasks if (gain := gained(task)) is not None]
        works.append(
            _Work(
                tokens=_total([task.asd.round_tokens for task in tasks]),
                rounds=_total([task.asd.rounds for task in tasks]),
                spent=_total([task.spent for task in tasks]),
                lost=-_total(gains) if gains else None,
                strict_tokens=first.strict.round_tokens,
                strict_rounds=first.strict.rounds,
            )
        )
    return works


def _worth(works: Sequence[_Work], num_settings: int, bootstrap: Bootstrap) -> Worth:
    graded, loss = _graded(works), None
    if graded:
        gain = stratified(lambda *drawn: _extra_tokens(graded, drawn), _sizes(graded), bootstrap)
        if gain is not None and gain.low > 0:
            loss = stratified(
                lambda *drawn: _loss_per_token(graded, drawn), _sizes(graded), bootstrap
            )

    def answers(drawn: Sequence[Indices]) -> int:
        return num_settings * sum(index.shape[-1] for index in drawn)

    def per_answer(of: Callable[[Sequence[_Work], Sequence[Indices]], Floats]) -> Interval | None:
        return stratified(
            lambda *drawn: of(works, drawn) / answers(drawn), _sizes(works), bootstrap
        )

    return Worth(
        extra_tokens_per_answer=per_answer(_extra_tokens),
        regret_per_answer=per_answer(_spent),
        tokens_per_logit=stratified(
            lambda *drawn: _tokens_per_logit(works, drawn), _sizes(works), bootstrap
        ),
        loss_per_token=loss,
    )


def _sizes(works: Sequence[_Work]) -> list[int]:
    return [work.tokens.size for work in works]


def _graded(works: Sequence[_Work]) -> list[_Work]:
    return [work for work in works if work.lost is not None]


def _extra_tokens(works: Sequence[_Work], drawn: Sequence[Indices]) -> Floats:
    total: Floats = np.zeros(())
    for work, index in zip(works, drawn, strict=True):
        rate = work.strict_tokens[index].sum(axis=-1) / work.strict_rounds[index].sum(axis=-1)
        own = work.tokens[index].sum(axis=-1) - rate * work.rounds[index].sum(axis=-1)
        total = total + own
    return total


def _tokens_per_logit(works: Sequence[_Work], drawn: Sequence[Indices]) -> Floats:
    return _extra_tokens(works, drawn) / _spent(works, drawn)


def _spent(works: Sequence[_Work], drawn: Sequence[Indices]) -> Floats:
    return sums([work.spent for work in works], drawn)


def _loss_per_token(works: Sequence[_Work], drawn: Sequence[Indices]) -> Floats:
    lost = [work.lost for work in works if work.lost is not None]
    return sums(lost, drawn) / _extra_tokens(works, drawn)


def _total(arrays: Sequence[Floats]) -> Floats:
    return np.asarray(np.sum(arrays, axis=0), np.float64)


def _verdict(pooled: Contrast, num_settings: int, num_requests: int) -> str:
    difference = pooled.tokens_per_logit_difference
    where = (
        f"at the same controls ({num_settings} settings, {num_requests} requests)"
        if num_settings > 1
        else f"at the same controls ({num_requests} requests)"
    )
    if difference is None:
        return (
            f"No verdict on tokens per logit {where}: a scheme spent no regret, at least in some "
            "resamples. " + _harm(pooled.loss_per_token_difference)
        )
    words = _compared(difference, "more", "fewer")
    return (
        f"{OTHER.capitalize()} gives {difference.estimate:+.2f} tokens per logit of regret against "
        f"{BASE} {where}, {100 * difference.confidence:g} % interval [{difference.low:+.2f}, "
        f"{difference.high:+.2f}]: {words}. " + _harm(pooled.loss_per_token_difference)
    )


def _harm(difference: Interval | None) -> str:
    if difference is None:
        return (
            "Harm per extra token cannot be compared: the extra tokens of a scheme, or their "
            "interval, reach 0, or no task has right answers."
        )
    words = _compared(difference, "more harm", "less harm")
    return (
        f"It loses {1000 * difference.estimate:+.2f} right answers per 1,000 extra tokens against "
        f"{BASE}, interval [{1000 * difference.low:+.2f}, {1000 * difference.high:+.2f}]: {words}."
    )


def _compared(difference: Interval, above: str, below: str) -> str:
    if difference.low > 0:
        return above
    return below if difference.high < 0 else "no difference is shown"
