"""The ledger audit: answers are scored again by the target alone, and every charge is checked.

`rescore` runs the target over a finished answer, teacher-forced; `check` compares what it says with
what the output row claims. Neither shares code with the decode loop or the verifier.
"""

from asd_jax.evaluation.replay.check import Claim, Finding, Limits, check_claim
from asd_jax.evaluation.replay.rescore import Rescored, Rescorer

__all__ = ["Claim", "Finding", "Limits", "Rescored", "Rescorer", "check_claim"]
