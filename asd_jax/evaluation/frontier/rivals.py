"""Which settings of the rival rules are drawn, and which cannot be.

Formulas and sources of the rules are in `asd_jax.acceptance`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.acceptance import RULES

Values = Mapping[str, Sequence[Any]]

# Values to draw beside each rule's defaults, from strict to loose. The defaults of relaxed_top_k
# are strict, so its published top_k goes with every delta.
RIVAL_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "rejection_sampling": {},
    "medusa_typical": {"epsilon": (0.3, 0.2, 0.03)},
    "relaxed_top_k": {"top_k": (10,), "delta": (0.1, 0.3, 0.6)},
    "lenient_thresholds": {"threshold_acc": (0.7, 0.4)},
    "token_v3": {"alpha": (0.3, 0.6, 0.8)},
    "static_ensemble": {"weight": (0.9, 0.7, 0.3)},
    "mars": {"theta": (0.95, 0.8, 0.7)},
    "fly": {"entropy_threshold": (0.6, 0.1)},
}
_STRICT_AT_0 = ("rejection_sampling", "lenient_thresholds")


@dataclasses.dataclass(frozen=True)
class Rival:
    """One setting of a rival rule.

    Attributes:
      rule: Its name in `RULES`.
      options: What differs from its defaults.
    """

    rule: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """A name for files: the rule, and what differs from its defaults."""
        parts = [f"{name}_{value}" for name, value in self.options.items()]
        return re.sub(r"[^\w.+-]", "_", "-".join([self.rule, *parts]))

    @property
    def all_options(self) -> dict[str, Any]:
        """All options of the rule, defaults included."""
        return {**_defaults(self.rule), **self.options}


def rival_settings(rule: str, values: Values | None = None) -> tuple[Rival, ...]:
    """Returns the settings of a rule: its defaults first, then all combinations of the values.

    Args:
      rule: A rule of `RIVAL_VALUES`.
      values: Values to try by option; None: those of `RIVAL_VALUES`.

    Returns:
      Each setting once.

    Raises:
      ValueError: The rule is none of the rivals, has no such option, or not with such a value; the
        message names rule and option.
    """
    if rule not in RIVAL_VALUES:
        raise ValueError(f"got rule {rule!r}, allowed are {', '.join(RIVAL_VALUES)}")
    values = RIVAL_VALUES[rule] if values is None else values
    defaults = _defaults(rule)
    for name, tried in values.items():
        if name not in defaults:
            raise ValueError(
                f"{rule}.{name}: no such option, allowed are {', '.join(defaults) or 'none'}"
            )
        if not isinstance(tried, (list, tuple)) or not tried:
            raise ValueError(f"{rule}.{name}: got {tried!r}, allowed is a list of 1 or more values")
    settings = [Rival(rule, {})]
    for combination in itertools.product(*values.values()):
        options = dict(zip(values, combination, strict=True))
        try:
            RULES[rule](**options)
        except ValueError as error:
            raise ValueError(f"{rule}.{error}") from error
        settings.append(Rival(rule, {k: v for k, v in options.items() if v != defaults[k]}))
    return tuple({setting.name: setting for setting in settings}.values())


def reason_left_out(
    rival: Rival, *, has_distribution: bool, temperature: float, num_draft_tokens: int
) -> str | None:
    """Returns why a setting cannot be drawn with a drafter, or would repeat strict decoding.

    Args:
      rival: The setting.
      has_distribution: Whether the drafter can hand out logits.
      temperature: Of the requests.
      num_draft_tokens: G.
    """
    if RULES[rival.rule](**rival.options).needs_draft_logits and not has_distribution:
        return "it reads the drafter's distribution, and this drafter has none"
    if rival.rule in _STRICT_AT_0 and temperature == 0:
        return "at temperature 0 it is strict verification, token for token"
    window = rival.options.get("window") or 1  # by default it fits any draft of 2 or more
    if rival.rule == "fly" and window >= num_draft_tokens:
        return (
            f"its window of {window} has no place behind a token of a draft of {num_draft_tokens}"
        )
    return None


def _defaults(rule: str) -> dict[str, Any]:
    parameters = inspect.signature(RULES[rule]).parameters
    return {name: parameter.default for name, parameter in parameters.items()}
