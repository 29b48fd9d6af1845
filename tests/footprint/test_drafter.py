"""Drafters of shapes against the same drafters loaded from files with those shapes."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from asd_jax import sharding
from asd_jax.footprint import weights
from asd_jax.footprint.drafter import abstract_drafter
from asd_jax.footprint.drafter_sizes import RELEASED_SHAPES
from asd_jax.load import load_drafter, load_target, target_layout
from tests import tiny

VOCAB, HIDDEN = 61, 32
TARGET = tiny.HF_CONFIG | {"num_hidden_layers": 8}
LAYER = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
}
DSPARK = LAYER | {
    "num_hidden_layers": 2,
    "target_layer_ids": [1, 5],
    "block_size": 4,
    "mask_token_id": 5,
    "markov_rank": 4,
}
MEDUSA = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "medusa_num_heads": 4,
    "medusa_num_layers": 1,
}
CASES = {
    "dspark": ("dspark", DSPARK),
    "eagle3": ("eagle3", LAYER | {"draft_vocab_size": 20}),
    "eagle3, whole vocabulary": ("eagle3", LAYER),
    "medusa": ("medusa", MEDUSA),
    "medusa, shared projection": ("medusa", MEDUSA | {"version": "2"}),
}
MESHES = [(1, 1), (2, 4), (1, 8)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("target") / "files", TARGET)


@pytest.mark.parametrize(("data", "model"), MESHES)
@pytest.mark.parametrize("case", CASES)
def test_a_drafter_of_shapes_is_the_one_that_is_loaded(case, data, model, checkpoint, tmp_path):
    name, config = CASES[case]
    tensors = {
        tensor: np.zeros(shape, np.int64 if tensor == "d2t" else np.float32)
        for tensor, shape in RELEASED_SHAPES[name](config).items()
    }
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    mesh = sharding.make_mesh(data=data, model=model, devices=jax.devices()[: data * model])
    target = load_target(str(checkpoint), dtype=jnp.float32, mesh=mesh)
    loaded = load_drafter(str(tmp_path), target=target, num_draft_tokens=3)

    target_config = weights.read_target(TARGET)
    abstract_target = weights.abstract_target(target_layout(target_config, jnp.float32, mesh))
    abstract = abstract_drafter(
        name, config, abstract_target, target_config, num_draft_tokens=3, dtype=jnp.float32
    )

    def places(drafter) -> list:
        return [
            (jax.tree_util.keystr(path), leaf.shape, leaf.dtype, leaf.sharding)
            for path, leaf in jax.tree_util.tree_leaves_with_path(drafter.params)
        ]

    assert places(abstract) == places(loaded)
    assert abstract.partition == loaded.partition
    assert abstract.num_params == loaded.num_params
    assert abstract.feature_layers == loaded.feature_layers

    def shared(drafter, target) -> list[int]:
        of_target = {id(leaf) for leaf in jax.tree.leaves(target.params)}
        leaves = jax.tree.leaves(drafter.params)
        return [index for index, leaf in enumerate(leaves) if id(leaf) in of_target]

    assert shared(abstract, abstract_target) == shared(loaded, target.target)
