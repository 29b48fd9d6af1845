"""Drafters: who proposes tokens. Each is a `Drafter`: init, prefill, propose, commit."""

from __future__ import annotations

from asd_jax.drafters import dspark, eagle3, medusa
from asd_jax.drafters.family import DrafterFamily

# Families of trained drafters, in the order in which they are recognised.
FAMILIES: tuple[DrafterFamily, ...] = (dspark.FAMILY, eagle3.FAMILY, medusa.FAMILY)
