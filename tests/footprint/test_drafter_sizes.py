"""Sizes of trained drafters against their released files and against arithmetic."""

from __future__ import annotations

import dataclasses
import importlib
import math

import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.source import TensorSource
from asd_jax.drafters.family import DrafterOptions
from asd_jax.footprint import weights
from asd_jax.footprint.drafter_sizes import RELEASED_SHAPES
from asd_jax.load import target_layout
from asd_jax.load.drafter import drafter_layout, facts_of, find_family

BF16 = 2
DSPARK = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "markov_rank": 256,
}


def drafter_of(name: str) -> tuple[str, dict]:
    config = importlib.import_module(f"experiments.configs.plan_{name}").get_config()
    return config.drafter.family, config.drafter.config.to_dict()


def count(family: str, config: dict) -> int:
    shapes = RELEASED_SHAPES[family](config)
    return sum(math.prod(shape) for name, shape in shapes.items() if name != "d2t")


@pytest.mark.parametrize(
    ("hidden", "wide", "heads", "file_bytes", "header"),
    [
        # Sizes of the released model.safetensors; what exceeds the tensors is its header.
        (2560, 9728, 32, 2_786_273_970, 6_832),
        (4096, 12288, 32, 4_742_170_330, 6_872),
    ],
)
def test_dspark_tensors_fill_the_released_files(hidden, wide, heads, file_bytes, header):
    config = DSPARK | dict(hidden_size=hidden, intermediate_size=wide, num_attention_heads=heads)
    assert count("dspark", config) * BF16 == file_bytes - header
    assert len(RELEASED_SHAPES["dspark"](config)) == 64


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3_8b_dspark", 4_742_163_458 // BF16),
        ("qwen3_14b_dspark", 6_832_526_338 // BF16),
        # fc, attention on 2 x 4096 numbers, feed-forward, output projection, five norms
        (
            "llama31_8b_eagle3",
            4096 * 12288
            + 8192 * (4096 + 2 * 1024)
            + 4096 * 4096
            + 3 * 4096 * 14336
            + 32000 * 4096
            + 4 * 4096,
        ),
        ("llama31_8b_medusa", 4 * (4096 * 4096 + 4096 + 128256 * 4096)),
        (
            "qwen25_7b_eagle3",
            3584 * 10752
            + 7168 * (3584 + 2 * 512)
            + 3584 * 3584
            + 3 * 3584 * 18944
            + 16000 * 3584
            + 4 * 3584,
        ),
    ],
)
def test_drafters_of_the_shipped_plans(name, parameters):
    assert count(*drafter_of(name)) == parameters


def test_medusa_heads_that_share_the_projection_hold_residual_blocks_only():
    config = {"hidden_size": 64, "vocab_size": 100, "medusa_num_heads": 3, "medusa_num_layers": 2}
    assert count("medusa", config | {"version": "2"}) == 3 * 2 * (64 * 64 + 64)
    assert count("medusa", config) == 3 * (2 * (64 * 64 + 64) + 100 * 64)


PLANS = (
    "qwen3_8b_dspark",
    "qwen3_14b_dspark",
    "llama31_8b_eagle3",
    "llama31_8b_medusa",
    "qwen25_7b_eagle3",
)
VARIANTS = [
    *((name, {}) for name in PLANS),
    ("qwen3_8b_dspark", {"enable_confidence_head": False}),
    ("llama31_8b_eagle3", {"head_dim": 64}),
    ("llama31_8b_medusa", {"version": "2", "medusa_num_layers": 2}),
]


@pytest.mark.parametrize(("name", "change"), VARIANTS)
def test_every_released_tensor_is_a_parameter_of_its_family(name, change):
    """The families read sizes off the tensors, so a wrong name would go unnoticed in a plan."""
    plan = importlib.import_module(f"experiments.configs.plan_{name}").get_config()
    config = plan.drafter.config.to_dict() | change
    shapes = RELEASED_SHAPES[plan.drafter.family](config)
    family = find_family(shapes, config)
    assert family.name == plan.drafter.family

    target_config = weights.read_target(plan.target.to_dict())
    # Fewer layers are the same tables in less time; only the tapped layers ask how many there are.
    few = dataclasses.replace(target_config, num_layers=1)
    target = weights.abstract_target(target_layout(few, jnp.dtype("bfloat16"), None))
    own = family.read_config(config, shapes, facts_of(target, target_config), DrafterOptions())
    layout = drafter_layout(family, own, jnp.dtype("bfloat16"), None)
    sources = {
        tensor: TensorSource(tensor, shape, np.dtype(np.float32), lambda index: None)
        for tensor, shape in shapes.items()
    }
    rules = [KeyRule(*rule) for rule in family.key_rules(own)]
    mapped = map_tensors(sources, rules, layout.shapes, ignored=family.ignored_keys(own))
    assert {tensor.name for tensor in mapped.values()} == shapes.keys() - {"d2t"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"markov_head_type": "rnn"}, "markov_head_type: got 'rnn', allowed is 'vanilla'"),
        ({"markov_rank": 0}, "markov_rank: got 0, allowed is a whole number >= 1"),
        ({"target_layer_ids": None}, "target_layer_ids: got None, allowed is a list"),
        ({"hidden_size": None}, "hidden_size: missing"),
    ],
)
def test_configs_that_are_not_implemented_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        RELEASED_SHAPES["dspark"](DSPARK | change)
