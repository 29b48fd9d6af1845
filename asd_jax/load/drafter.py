"""From a name to a drafter ready to propose."""

from __future__ import annotations

from asd_jax.drafters.ngram import ngram
from asd_jax.drafters.none import no_drafter
from asd_jax.types import Drafter


def load_drafter(name: str, *, num_draft_tokens: int) -> Drafter:
    """Returns a drafter that needs no checkpoint.

    Args:
      name: "ngram" or "none".
      num_draft_tokens: G, for "ngram".

    Raises:
      ValueError: Unknown name.
    """
    if name == "ngram":
        return ngram(num_draft_tokens)
    if name == "none":
        return no_drafter()
    raise ValueError(f"drafter: got {name!r}, allowed is 'ngram' or 'none'")
