"""Drafters: who proposes tokens. Each is a `Drafter`: init, prefill, propose, commit."""

from __future__ import annotations

from asd_jax.drafters import eagle3
from asd_jax.drafters.family import DrafterFamily

# Families of trained drafters, in the order in which they are recognised.
FAMILIES: tuple[DrafterFamily, ...] = (eagle3.FAMILY,)
