"""Parameters of a module by path, the names under which checkpoints and layouts know them."""

from __future__ import annotations

from typing import Any

from flax import nnx


def flat_params(params: Any) -> dict[str, Any]:
    """Returns the parameters of a module's state by path, as in `layers/0/mlp/up_proj/weight`."""
    return {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(params)}


def unflat_params(params: dict[str, Any]) -> nnx.State:
    """Returns parameters by path as a module's state; the inverse of `flat_params`."""
    flat = [
        (tuple(int(part) if part.isdecimal() else part for part in path.split("/")), value)
        for path, value in params.items()
    ]
    return nnx.from_flat_state([(path, nnx.Param(value)) for path, value in flat])
