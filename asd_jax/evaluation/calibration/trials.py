"""Trials of settings: their prompt rows, and what each setting did to the same examples.

A value scheme is compiled into the loop, so there is a run for each; in it every example is asked
under strict control (setting 0) and under every setting of the grid, in the same batches.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.audit.answers import parse_answer
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.measures import NO_POSITION, Measures
from asd_jax.evaluation.audit.pairs import Pair, Pairs
from asd_jax.evaluation.calibration.grid import Setting, by_setting, grid_rows, prompt_row
from asd_jax.evaluation.plain_json import infinity_as_text
from asd_jax.evaluation.tasks import TASKS, Example

STRICT = Setting(gate=0.0, block_cap=0, budget=0.0)
# A token's realised value is never above its remaining one, so the gate lets less through.
SAFEST_FIRST = ("realised", "remaining")

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A setting under a value scheme.

    Attributes:
      value_scheme: One of `SAFEST_FIRST`.
      setting: The controls.
    """

    value_scheme: str
    setting: Setting

    def options(self) -> dict[str, Any]:
        """Returns what tells it from the others, for tables."""
        return {"value_scheme": self.value_scheme, **infinity_as_text(self.setting.overrides())}


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What a setting did, beside strict decoding of the same N examples, M of them graded.

    Examples are in the order of their ids' SHA-256: tests that read losses one after the other need
    an order that has to do with neither task nor difficulty.

    Attributes:
      round_tokens: Tokens that rounds emitted. [N].
      rounds: Target forwards, prefills not counted. [N].
      strict_round_tokens: Strict decoding's. [N].
      strict_rounds: Strict decoding's. [N].
      is_right: Whether the answers to graded examples are right. bool [M].
      strict_is_right: Strict decoding's. bool [M].
      likeness: Word overlap with the reference less strict decoding's, of ungraded examples that
        have one. [L].
      exceptions: Committed exceptions. [N].
      spent: Regret in logits. [N].
      is_changed: Whether the token ids are others than strict decoding's. bool [N].
    """

    round_tokens: Floats
    rounds: Floats
    strict_round_tokens: Floats
    strict_rounds: Floats
    is_right: npt.NDArray[np.bool_]
    strict_is_right: npt.NDArray[np.bool_]
    likeness: Floats
    exceptions: Floats
    spent: Floats
    is_changed: npt.NDArray[np.bool_]

    @property
    def losses(self) -> Floats:
        """1 where only strict decoding is right, -1 where only the setting is, else 0. [M]."""
        return self.strict_is_right.astype(np.float64) - self.is_right

    @property
    def speed(self) -> float:
        """Tokens a target forward."""
        return _tokens_per_forward(self.round_tokens, self.rounds)

    @property
    def strict_speed(self) -> float:
        """Strict decoding's tokens a target forward."""
        return _tokens_per_forward(self.strict_round_tokens, self.strict_rounds)


def candidates(settings: Sequence[Setting], schemes: Iterable[str]) -> tuple[Candidate, ...]:
    """Returns all settings under all schemes, in an order from strict to loose.

    Raises:
      ValueError: A scheme is unknown.
    """
    chosen = set(schemes)
    if not chosen <= set(SAFEST_FIRST):
        raise ValueError(f"schemes: got {sorted(chosen)}, allowed are {', '.join(SAFEST_FIRST)}")
    ordered = [scheme for scheme in SAFEST_FIRST if scheme in chosen]
    return tuple(Candidate(scheme, setting) for setting in settings for scheme in ordered)


def asked_row(
    example: Example, number: int, *, max_new_tokens: int, seed: int = 0
) -> dict[str, Any]:
    """Returns the prompt row of an example, with its length limit and seed.

    Args:
      example: What is asked.
      number: Its place among the questions, from 0.
      max_new_tokens: Of the run; a task that wants less gets less.
      seed: Of the run.
    """
    limit = min(max_new_tokens, TASKS[example.task].max_new_tokens)
    return {**prompt_row(example), "max_new_tokens": limit, "seed": seed + number}


def trial_rows(
    examples: Sequence[Example],
    settings: Sequence[Setting],
    *,
    max_new_tokens: int,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Returns the rows of a run: every example under strict control, then under every setting.

    An example has the same seed under all of them, so that noise does not tell them apart.

    Args:
      examples: What is asked.
      settings: The grid; number 1 is its first.
      max_new_tokens: As in `asked_row`.
      seed: As in `asked_row`.
    """
    return setting_rows(examples, (STRICT, *settings), max_new_tokens=max_new_tokens, seed=seed)


def setting_rows(
    examples: Sequence[Example],
    settings: Sequence[Setting],
    *,
    max_new_tokens: int,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run: every example under every setting; otherwise as `trial_rows`."""
    for number, example in enumerate(examples):
        asked = asked_row(example, number, max_new_tokens=max_new_tokens, seed=seed)
        for row in grid_rows([example], settings):
            yield asked | infinity_as_text(row)


def pair_up(
    rows: Iterable[Mapping[str, Any]],
    examples: Sequence[Example],
    num_settings: int,
    run: Mapping[str, Any],
) -> list[dict[str, Pairs]]:
    """Joins the answers of every setting with the strict ones.

    Args:
      rows: Answers to `trial_rows`.
      examples: What was asked.
      num_settings: S, the size of the grid.
      run: The description of the run, passed through.

    Returns:
      The pairs of every task by its name, for settings 1 to S.

    Raises:
      AuditError: An answer is bad or missing.
    """
    table = by_setting(rows)
    paired: list[dict[str, Pairs]] = []
    for number in range(1, num_settings + 1):
        tasks: dict[str, list[Pair]] = {}
        for example in sorted(examples, key=lambda example: example.id):
            strict, asd = (_answer(table, place, example) for place in (0, number))
            tasks.setdefault(example.task, []).append(
                Pair(example, parse_answer(strict), parse_answer(asd))
            )
        paired.append({name: Pairs(tuple(pairs), run, {}) for name, pairs in tasks.items()})
    return paired


def _answer(
    table: Mapping[int, Mapping[str, Mapping[str, Any]]], number: int, example: Example
) -> Mapping[str, Any]:
    try:
        return table[number][example.id]
    except KeyError as error:
        raise AuditError(
            f"id {example.id!r}, setting {number}: got no answer, allowed is one"
        ) from error


def make_outcome(tasks: Mapping[str, tuple[Pairs, Measures]]) -> Outcome:
    """Puts the tasks of a setting together.

    Args:
      tasks: Pairs and their measures by task, at least one.
    """
    pairs = [pair for each, _ in tasks.values() for pair in each]
    measures = [each for _, each in tasks.values()]
    order = np.array(sorted(range(len(pairs)), key=lambda place: _shuffled(pairs[place].id)), int)
    is_graded = np.concatenate(
        [np.full(m.spent.size, m.asd.is_right is not None) for m in measures]
    )
    graded = order[is_graded[order]]
    likeness = np.concatenate([m.asd.overlap - m.strict.overlap for m in measures])
    described = order[(~is_graded & np.isfinite(likeness))[order]]

    def joined(name: str, arm: str = "") -> Any:
        return np.concatenate([getattr(getattr(m, arm) if arm else m, name) for m in measures])

    def right(arm: str) -> npt.NDArray[np.bool_]:
        parts = [getattr(m, arm).is_right for m in measures]
        sizes = [m.spent.size for m in measures]
        whole = [
            np.zeros(size, np.bool_) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
        return np.concatenate(whole)[graded]

    return Outcome(
        round_tokens=joined("round_tokens", "asd")[order],
        rounds=joined("rounds", "asd")[order],
        strict_round_tokens=joined("round_tokens", "strict")[order],
        strict_rounds=joined("rounds", "strict")[order],
        is_right=right("asd"),
        strict_is_right=right("strict"),
        likeness=likeness[described],
        exceptions=joined("exceptions")[order],
        spent=joined("spent")[order],
        is_changed=joined("first_divergence")[order] != NO_POSITION,
    )


def _tokens_per_forward(tokens: Floats, rounds: Floats) -> float:
    if not rounds.sum():
        raise ValueError("rounds: got 0 in all answers, needs answers of more than one token")
    return float(tokens.sum() / rounds.sum())


def _shuffled(own_id: str) -> str:
    return hashlib.sha256(own_id.encode()).hexdigest()
