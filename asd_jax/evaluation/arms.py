"""The ways of decoding that a run compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from asd_jax.acceptance import strict
from asd_jax.drafters.none import no_drafter
from asd_jax.types import AcceptanceRule, Drafter

GREEDY, STRICT = "greedy", "strict"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way of decoding.

    Attributes:
      name: Its name in the rows.
      drafter: The proposer.
      rule: The acceptance rule.
      num_draft_tokens: G.
      has_controls: Whether the requests' controls count; otherwise their budget is 0.
    """

    name: str
    drafter: Drafter
    rule: AcceptanceRule
    num_draft_tokens: int
    has_controls: bool


def make_arms(
    names: Sequence[str], *, drafter: Drafter, rule: AcceptanceRule, num_draft_tokens: int
) -> tuple[Arm, ...]:
    """Builds the arms of a run.

    Args:
      names: Out of "greedy" (no drafter, one token a round), "strict" (the drafter, verified
        strictly) and the rule's own name (the drafter, the rule and the requests' controls).
      drafter: The proposer of all arms but "greedy".
      rule: The rule of the last kind of arm.
      num_draft_tokens: G of all arms but "greedy".

    Raises:
      ValueError: An unknown or repeated name, or none.
    """
    # With budget 0 the ASD rule is strict bit for bit, so both arms can share one program: half the
    # compilation, and a baseline that differs in nothing but the controls.
    strict_rule = rule if rule.name == "asd" else strict()
    arms = {
        rule.name: Arm(rule.name, drafter, rule, num_draft_tokens, True),
        STRICT: Arm(STRICT, drafter, strict_rule, num_draft_tokens, False),
        GREEDY: Arm(GREEDY, no_drafter(), strict(), 0, False),
    }
    if not names or len(set(names)) != len(names) or not set(names) <= set(arms):
        raise ValueError(
            f"arms: got {', '.join(names) or 'none'}, allowed is each of "
            f"{', '.join(reversed(arms))} at most once, and at least one"
        )
    return tuple(arms[name] for name in names)
