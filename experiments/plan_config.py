"""Configurations of plans: what fields there are, and what they may be together.

A plan describes its target and drafter by the fields of their `config.json`, so that no file is
needed. As for `experiments.config`, a file in `experiments/configs/` defines `get_config()`, which
starts from `default_config()`, and any field can be set on the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from asd_jax.footprint import CHIPS, DRAFTERS, Workload
from asd_jax.footprint.report import DEFAULT_HEADROOM
from experiments import fields
from experiments.fields import Schema

ALL_CHIPS = "all"
_MOST_DEVICES = 1024


@dataclasses.dataclass(frozen=True)
class DrafterPlan:
    """The drafter."""

    family: str = fields.choice("ngram", DRAFTERS, "kind of drafter")
    config: dict[str, Any] = fields.free("the drafter's config.json")


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """The devices."""

    data: int = fields.whole(1, 1, "devices that divide the requests", high=_MOST_DEVICES)
    model: int = fields.whole(1, 1, "devices that divide the weights", high=_MOST_DEVICES)


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """A plan."""

    target: dict[str, Any] = fields.free("the target's config.json")
    drafter: DrafterPlan = fields.group(DrafterPlan)
    mesh: MeshPlan = fields.group(MeshPlan)
    num_draft_tokens: int = fields.whole(7, 1, "draft tokens a round")
    batch_size: int = fields.whole(8, 1, "requests decoded together, on the whole mesh", high=65536)
    prompt_length: int = fields.whole(1024, 1, "tokens of a padded prompt")
    max_new_tokens: int = fields.whole(1024, 1, "tokens an answer")
    prefill_chunk: int = fields.whole(256, 1, "prompt tokens of a request in one forward")
    dtype: str = fields.choice("bfloat16", ("bfloat16", "float32"), "type of weights and caches")
    chip: str = fields.choice(ALL_CHIPS, (*CHIPS, ALL_CHIPS), "accelerator it has to fit")
    headroom: float = fields.number(
        DEFAULT_HEADROOM,
        lambda value: 0 <= value < 1,
        "a number >= 0 and < 1",
        "part of a chip's memory to leave free",
    )
    compile: bool = fields.flag(True, "compile the loop, for temporaries and exchanges")
    output: str | None = fields.text(None, "JSON file, which must not exist yet")

    @property
    def workload(self) -> Workload:
        """What is decoded."""
        names = [field.name for field in dataclasses.fields(Workload)]
        return Workload(**{name: getattr(self, name) for name in names})


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    data, model = values["mesh.data"], values["mesh.model"]
    if data * model <= _MOST_DEVICES:
        return []
    return [f"mesh: got {data} x {model} devices, allowed is a product <= {_MOST_DEVICES}"]


SCHEMA = Schema(PlanConfig, _misfits)
default_config = SCHEMA.default_config
