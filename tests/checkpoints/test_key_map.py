"""Names to paths by rules, and the one error that reports everything which does not fit."""

import jax
import numpy as np
import pytest

from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.source import CheckpointError, TensorSource

RULES = [
    KeyRule(r"model\.embed_tokens\.weight", "embed"),
    KeyRule(r"model\.layers\.(\d+)\.self_attn\.(q|k)_proj\.weight", r"layers/\1/attention/\2"),
    KeyRule(r"lm_head\.weight", "head", transform=TensorSource.transpose, dtype=np.float16),
]


def tensor(name, shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return TensorSource(name, shape, values.dtype, lambda index: values[index])


def tensors(**overrides):
    shapes = {
        "model.embed_tokens.weight": (6, 4),
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.layers.10.self_attn.k_proj.weight": (2, 4),
        "lm_head.weight": (6, 4),
        **overrides,
    }
    return {name: tensor(name, shape) for name, shape in shapes.items()}


EXPECTED = {
    "embed": (6, 4),
    "layers/0/attention/q": (4, 4),
    "layers/10/attention/k": (2, 4),
    "head": (4, 6),
}


def test_each_parameter_gets_its_tensor_unread():
    def fail(index):
        raise AssertionError("read")

    sources = {name: TensorSource(name, t.shape, t.dtype, fail) for name, t in tensors().items()}
    mapped = map_tensors(sources, RULES, EXPECTED)
    assert mapped.keys() == EXPECTED.keys()
    assert mapped["layers/10/attention/k"].name == "model.layers.10.self_attn.k_proj.weight"


def test_transform_and_dtype_apply_when_read_also_to_slices():
    head = map_tensors(tensors(), RULES, EXPECTED)["head"]
    want = np.arange(24, dtype=np.float16).reshape(6, 4).T
    assert head.shape == (4, 6) and head.dtype == np.float16
    np.testing.assert_array_equal(head.read(), want)
    np.testing.assert_array_equal(head.read_slice((slice(1, 3), slice(2, 5))), want[1:3, 2:5])


def test_tuple_paths_and_shape_structs_are_accepted_and_kept():
    expected = {
        ("embed",): jax.ShapeDtypeStruct((6, 4), np.float32),
        ("layers", 0, "attention", "q"): np.zeros((4, 4)),
        ("layers", 10, "attention", "k"): [2, 4],
        ("head",): (4, 6),
    }
    assert map_tensors(tensors(), RULES, expected).keys() == expected.keys()


def test_one_fused_tensor_may_fill_two_parameters():
    def half(part):
        def transform(source):
            rows = source.shape[0] // 2
            whole = slice(part * rows, (part + 1) * rows)
            return TensorSource(
                source.name,
                (rows, *source.shape[1:]),
                source.dtype,
                lambda index: source.read_slice((whole,))[index],
            )

        return transform

    rules = [KeyRule("qk", "q", half(0)), KeyRule("qk", "k", half(1))]
    mapped = map_tensors({"qk": tensor("qk", (4, 3))}, rules, {"q": (2, 3), "k": (2, 3)})
    np.testing.assert_array_equal(mapped["k"].read(), [[6, 7, 8], [9, 10, 11]])


def test_everything_that_does_not_fit_is_one_error():
    sources = tensors(**{"model.embed_tokens.weight": (7, 4), "stray": (1,)})
    sources["model.layers.11.self_attn.q_proj.weight"] = tensor("eleven", (4, 4))
    expected = {**EXPECTED, "norm": (4,)}
    with pytest.raises(CheckpointError) as caught:
        map_tensors(sources, RULES, expected)
    message = str(caught.value)
    assert "1 parameters without a tensor: norm" in message
    assert "2 tensors that no parameter takes: model.layers.11.self_attn.q_proj.weight" in message
    assert "(for layers/11/attention/q), stray" in message
    assert "embed (model.embed_tokens.weight) got (7, 4), expected (6, 4)" in message


def test_two_tensors_for_one_parameter_are_an_error():
    rules = [KeyRule("a|b", "x")]
    sources = {"a": tensor("a", (1,)), "b": tensor("b", (1,))}
    with pytest.raises(CheckpointError, match=r"more than one tensor: x \(a and b\)"):
        map_tensors(sources, rules, {"x": (1,)})


def test_ignored_tensors_may_go_unused_but_only_by_whole_name():
    sources = tensors(**{"model.layers.0.rotary_emb.inv_freq": (2,), "inv_freq.more": (2,)})
    with pytest.raises(CheckpointError) as caught:
        map_tensors(sources, RULES, EXPECTED, ignored=[r".*inv_freq"])
    assert "1 tensors that no parameter takes: inv_freq.more" in str(caught.value)
    del sources["inv_freq.more"]
    map_tensors(sources, RULES, EXPECTED, ignored=[r".*inv_freq"])


def test_a_tied_head_may_be_ignored_though_a_rule_matches_it():
    expected = {path: shape for path, shape in EXPECTED.items() if path != "head"}
    assert "head" not in map_tensors(tensors(), RULES, expected, ignored=[r"lm_head\.weight"])


def test_long_lists_are_cut_with_a_count():
    expected = {f"layers/{number:02}/w": (1,) for number in range(25)}
    with pytest.raises(CheckpointError) as caught:
        map_tensors({}, RULES, expected)
    message = str(caught.value)
    assert "25 parameters without a tensor" in message and "layers/09/w" in message
    assert message.endswith("... and 15 more") and "layers/10/w" not in message
