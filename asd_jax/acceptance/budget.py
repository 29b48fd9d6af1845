"""The project's own rule, and strict verification, which is that rule without a budget."""

from __future__ import annotations

import functools

import jax

from asd_jax import verifier
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger, Verdict


def asd(value_scheme: verifier.ValueScheme = "remaining") -> AcceptanceRule:
    """Returns Approximate Speculative Decoding as a rule (arXiv 2608.03447).

    Args:
      value_scheme: "remaining" (the paper's suffix value) or "realised"; see `asd_jax.verifier`.

    Raises:
      ValueError: Unknown scheme.
    """
    if value_scheme not in verifier.VALUE_SCHEMES:
        raise ValueError(
            f"value_scheme: got {value_scheme!r}, allowed is one of {verifier.VALUE_SCHEMES}"
        )
    return _asd(value_scheme)


@functools.cache
def _asd(value_scheme: verifier.ValueScheme) -> AcceptanceRule:
    """Returns one object a scheme, however `asd` was called: rules are static jit arguments."""

    def verify(
        block: Block, ledger: Ledger, controls: Controls, protected_ids: jax.Array
    ) -> Verdict:
        return verifier.decide(
            block.draft_tokens,
            block.scores,
            ledger,
            controls,
            draft_length=block.draft_length,
            value_length=block.value_length,
            value_scheme=value_scheme,
            protected_ids=protected_ids,
        )

    return AcceptanceRule(name="asd", verify=verify, settle=verifier.settle)


@functools.cache
def strict() -> AcceptanceRule:
    """Returns strict verification: a draft token is kept if it is what plain decoding would emit.

    It ignores the request's controls. `asd` with a zero budget gives the same tokens.
    """

    def verify(
        block: Block, ledger: Ledger, controls: Controls, protected_ids: jax.Array
    ) -> Verdict:
        del controls, protected_ids
        return verifier.decide(
            block.draft_tokens,
            block.scores,
            ledger,
            Controls.strict(),
            draft_length=block.draft_length,
        )

    return AcceptanceRule(name="strict", verify=verify, settle=verifier.settle)
