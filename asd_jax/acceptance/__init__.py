"""Acceptance rules behind one contract, so that one loop and one harness compare them all.

A rule is an `AcceptanceRule`: `verify` looks at one request's `Block` and returns a `Verdict`,
`settle` charges the ledger. Rules are made once per setting of their static options; the same
options give the same object, so compiled programs are shared.

`asd` and `strict` are the project's own. The others are rules that engines and papers use instead,
to be compared with: they know no budget, ignore the request's controls and read whole rows of
logits. What all of them share, how they fill the ledger included, is in `acceptance.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable

from asd_jax.acceptance.budget import asd, strict
from asd_jax.acceptance.coins import lenient_thresholds, rejection_sampling, static_ensemble
from asd_jax.acceptance.deferral import fly
from asd_jax.acceptance.plausibility import mars, medusa_typical, relaxed_top_k, token_v3
from asd_jax.types import AcceptanceRule

__all__ = [
    "RULES",
    "asd",
    "fly",
    "lenient_thresholds",
    "mars",
    "medusa_typical",
    "rejection_sampling",
    "relaxed_top_k",
    "static_ensemble",
    "strict",
    "token_v3",
]

RULES: dict[str, Callable[..., AcceptanceRule]] = {
    "asd": asd,
    "strict": strict,
    "rejection_sampling": rejection_sampling,
    "medusa_typical": medusa_typical,
    "relaxed_top_k": relaxed_top_k,
    "lenient_thresholds": lenient_thresholds,
    "token_v3": token_v3,
    "static_ensemble": static_ensemble,
    "mars": mars,
    "fly": fly,
}
