"""From a path or an id to a target, a tokenizer and a drafter ready to decode."""

from asd_jax.load.drafter import check_drafter, has_distribution, load_drafter
from asd_jax.load.layout import Layout, target_layout
from asd_jax.load.target import (
    LoadedTarget,
    default_dtype,
    load_target,
    read_target_config,
    save_target,
)

__all__ = [
    "LoadedTarget",
    "Layout",
    "check_drafter",
    "default_dtype",
    "has_distribution",
    "load_drafter",
    "load_target",
    "read_target_config",
    "save_target",
    "target_layout",
]
