"""Config fields: what they become, and that an impossible one is named with what is allowed."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from asd_jax.models import MODELS, qwen3
from asd_jax.models.feature_layers import eagle3_default, hidden_state_indices
from asd_jax.models.rope import RopeConfig

BASE = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
LLAMA3_FACTORS = dict(low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
FULL, SLIDING = "full_attention", "sliding_attention"


def read(model_type="llama", /, **changes):
    return MODELS[model_type].read_config({"model_type": model_type, **BASE, **changes})


def without(parameters, name):
    return {key: value for key, value in parameters.items() if key != name}


@pytest.mark.parametrize("model_type", sorted(MODELS))
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(vocab_size=None), "vocab_size: missing, needed is a whole number >= 1"),
        (dict(hidden_size=None), "hidden_size: missing, needed is a whole number >= 1"),
        (dict(num_hidden_layers=None), "num_hidden_layers: missing"),
        (dict(num_attention_heads=None), "num_attention_heads: missing"),
        (dict(intermediate_size=None), "intermediate_size: missing"),
        (dict(vocab_size=0), "vocab_size: got 0, allowed is a whole number >= 1"),
        (dict(hidden_size="32"), "hidden_size: got '32', allowed is a whole number >= 1"),
        (dict(num_hidden_layers=0), "num_hidden_layers: got 0, allowed"),
        (dict(num_hidden_layers=True), "num_hidden_layers: got True, allowed"),
        (dict(num_attention_heads=-4), "num_attention_heads: got -4, allowed"),
        (dict(intermediate_size=48.0), "intermediate_size: got 48.0, allowed"),
        (dict(max_position_embeddings=0), "max_position_embeddings: got 0, allowed"),
        (dict(num_key_value_heads=3), "num_kv_heads: got 3, allowed is a divisor of num_heads 4"),
        (dict(num_key_value_heads=0), "num_key_value_heads: got 0, allowed"),
        (dict(head_dim=7), "head_dim: got 7, allowed is an even number >= 2"),
        (dict(head_dim=8.0), "head_dim: got 8.0, allowed is a whole number >= 1"),
        (dict(rms_norm_eps=-1e-5), "rms_norm_eps: got -1e-05, allowed is a number > 0"),
        (dict(rms_norm_eps=0), "rms_norm_eps: got 0, allowed"),
        (dict(rms_norm_eps=True), "rms_norm_eps: got True, allowed"),
        (dict(rms_norm_eps="1e-5"), "rms_norm_eps: got '1e-5', allowed"),
        (dict(hidden_act="gelu"), "hidden_act: got 'gelu', allowed is 'silu'"),
        (dict(rms_norm_eps=10**400), "rms_norm_eps: got 1000.*, allowed is a number > 0"),
        (dict(rms_norm_eps=math.inf), "rms_norm_eps: got inf, allowed is a number > 0"),
        (dict(rms_norm_eps=1e-46), "rms_norm_eps: got 1e-46, allowed is a number > 0"),
        (dict(rms_norm_eps=2.0), "rms_norm_eps: got 2.0, allowed is a number > 0, from .* to 1$"),
        (dict(max_position_embeddings=[1]), r"max_position_embeddings: got \[1\], allowed"),
        (dict(max_position_embeddings=10**400), "max_position_embeddings: got 1000.*, allowed"),
        (dict(max_position_embeddings=1e30), r"max_position_embeddings: got 1e\+30, allowed"),
        (dict(max_position_embeddings=2**31), "max_position_embeddings: got 2147483648, allowed"),
        (dict(vocab_size=2**31), "vocab_size: got 2147483648, allowed .* and <= 2147483647"),
        (dict(hidden_size=2**40), "hidden_size: got 1099511627776, allowed .* <= 2147483647"),
        (dict(num_attention_heads=2**40), "num_attention_heads: got 1099511627776, allowed"),
        (dict(num_key_value_heads=2**40), "num_key_value_heads: got 1099511627776, allowed"),
        (dict(intermediate_size=2**40), "intermediate_size: got 1099511627776, allowed"),
        (dict(head_dim=2**40), "head_dim: got 1099511627776, allowed"),
        (dict(num_hidden_layers=4097), "num_hidden_layers: got 4097, allowed .* and <= 4096"),
        (dict(num_hidden_layers=10**9), "num_hidden_layers: got 1000000000, allowed .* <= 4096"),
        (dict(hidden_act=["silu"]), r"hidden_act: got \['silu'\], allowed is 'silu'"),
        (dict(tie_word_embeddings=1), "tie_word_embeddings: got 1, allowed is true or false"),
    ],
)
def test_an_impossible_size_is_refused_by_every_family(model_type, change, words):
    with pytest.raises(ValueError, match=words):
        read(model_type, **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(rope_theta=0), "rope_theta: got 0, allowed is a number > 0"),
        (dict(rope_theta=math.nan), "rope_theta: got nan, allowed"),
        (dict(rope_theta=math.inf), "rope_theta: got inf, allowed"),
        (dict(rope_theta=10**400), "rope_theta: got 1000.*, allowed"),
        (dict(rope_theta=1), "rope theta: got 1.0, allowed is a number > 1"),
        (dict(rope_theta=1, rope_scaling=YARN), "rope theta: got 1.0, allowed is a number > 1"),
        *[
            (
                {name: value},
                rf"config field {name}: got {re.escape(repr(value))}, allowed is an object or null",
            )
            for name in ("rope_scaling", "rope_parameters")
            for value in ([1], 3, True, "linear", "x", [], 0, False, "")
        ],
        (dict(rope_scaling={"type": ["linear"]}), r"rope_type: got \['linear'\], allowed is one"),
        (
            dict(rope_scaling={"type": "linear", "rope_type": "dynamic", "factor": 2.0}),
            "rope_scaling.rope_type and rope_scaling.type: got 'dynamic' and 'linear', allowed is",
        ),
        *[
            (
                dict(rope_theta=1e4, **{name: {"rope_theta": 1e6, **more}}),
                f"{name}.rope_theta and rope_theta: got 1000000.0 and 10000.0, allowed is one",
            )
            for name in ("rope_scaling", "rope_parameters")
            for more in ({"rope_type": "default"}, YARN)
        ],
        (
            dict(partial_rotary_factor=0.5, rope_parameters={"partial_rotary_factor": 1.0}),
            "partial_rotary_factor and partial_rotary_factor: got 1.0 and 0.5, allowed is one",
        ),
        *[
            (dict(rope_scaling={"type": kind, **fields}), words)
            for kind in ("linear", "dynamic", "yarn", "llama3")
            for fields, words in (
                (
                    LLAMA3_FACTORS | dict(factor=math.inf),
                    "factor: got inf, allowed is a number > 0",
                ),
                (LLAMA3_FACTORS | dict(factor=10**400), "factor: got 1000.*, allowed is a number"),
                (LLAMA3_FACTORS | dict(factor=0.5), "factor: got 0.5, allowed is a number in 1.."),
                (LLAMA3_FACTORS | dict(factor=2.0**31), "factor: got 2147483648.0, allowed is"),
            )
        ],
        *[
            (
                dict(rope_scaling={"type": kind, "factor": 2.0**30}),
                "factor: got 1073741824.0, which stretches .* allowed is <= 2147483647",
            )
            for kind in ("linear", "dynamic", "yarn")
        ],
        (
            dict(rope_scaling=without(YARN, "factor") | {"original_max_position_embeddings": 256}),
            "factor: got 0.5, allowed is a number in 1..",
        ),
        (dict(rope_scaling=YARN | {"beta_fast": math.inf}), "beta_fast: got inf, allowed"),
        (dict(rope_scaling=YARN | {"beta_slow": 1e-320}), "beta_slow: got 1e-320, allowed"),
        (dict(rope_scaling=YARN | {"beta_fast": 0.5}), "beta_fast: got 0.5, allowed is >= beta_s"),
        (dict(rope_scaling=YARN | {"attention_factor": math.inf}), "attention_factor: got inf, al"),
        (
            dict(rope_scaling=YARN | {"mscale": 3e38, "mscale_all_dim": 1e-37, "factor": 4e5}),
            "attention_factor: got .*, allowed",
        ),
        (
            dict(rope_scaling=LLAMA3 | {"high_freq_factor": 1.0}),
            "high_freq_factor: got 1.0, allowed is > low_freq_factor 1.0",
        ),
        (
            dict(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 2**40}),
            "original_max_position_embeddings: got 1099511627776, allowed",
        ),
        (
            dict(rope_scaling=YARN, original_max_position_embeddings=0),
            "original_max_position_embeddings: got 0, allowed",
        ),
        (dict(rope_scaling={"type": "spiral"}), "rope_type: got 'spiral', allowed is one of de"),
        (dict(rope_scaling={"rope_type": "longrope", "factor": 4.0}), "rope_type: got 'longrope'"),
        (dict(rope_parameters={"rope_type": "proportional"}), "rope_type: got 'proportional'"),
        (dict(rope_scaling={"type": "linear"}), "factor: missing, needed is a number > 0"),
        (dict(rope_scaling={"type": "dynamic", "factor": 0.0}), "factor: got 0.0, allowed"),
        (dict(rope_scaling={"type": "linear", "factor": "2"}), "factor: got '2', allowed"),
        (dict(rope_scaling=without(LLAMA3, "factor")), "factor: missing"),
        (dict(rope_scaling=without(LLAMA3, "low_freq_factor")), "low_freq_factor: missing"),
        (dict(rope_scaling=without(LLAMA3, "high_freq_factor")), "high_freq_factor: missing"),
        (
            dict(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 64.5}),
            "original_max_position_embeddings: got 64.5, allowed is a whole number >= 1",
        ),
        (dict(rope_scaling=YARN | {"beta_fast": -1}), "beta_fast: got -1, allowed"),
        (dict(rope_scaling=YARN | {"beta_slow": 0}), "beta_slow: got 0, allowed"),
        (dict(rope_scaling=YARN | {"truncate": 1}), "truncate: got 1, allowed is true or false"),
        (dict(rope_scaling=YARN | {"attention_factor": 0}), "attention_factor: got 0, allowed"),
        (
            dict(rope_scaling=YARN | {"mscale": "a", "mscale_all_dim": 1.0}),
            "mscale: got 'a', allowed",
        ),
        (
            dict(rope_parameters={FULL: {"rope_type": "default"}, SLIDING: {}}),
            rf"rope_parameters: got one set a layer type \({FULL}, {SLIDING}\), allowed is one set",
        ),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor: got 0.5, allowed is 1"),
        (
            dict(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25}),
            "partial_rotary_factor: got 0.25, allowed is 1",
        ),
        (
            dict(rope_parameters={"rope_type": "default"}, rope_scaling=YARN),
            "rope_parameters and rope_scaling: got .*'default'.* and .*'yarn'.*, allowed is one",
        ),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_an_impossible_rope_is_refused(model_type, change, words):
    with pytest.raises(ValueError, match=words):
        read(model_type, **change)


@pytest.mark.parametrize(
    ("model_type", "change", "words"),
    [
        ("llama", dict(attention_bias=1), "attention_bias: got 1, allowed is true or false"),
        ("llama", dict(mlp_bias="yes"), "mlp_bias: got 'yes', allowed is true or false"),
        ("qwen3", dict(attention_bias="no"), "attention_bias: got 'no', allowed"),
        ("mistral", dict(sliding_window=0), "sliding_window: got 0, allowed is a whole number"),
        ("mistral", dict(sliding_window=2**40), "sliding_window: got 1099511627776, allowed"),
        ("mistral", dict(sliding_window=[6]), r"sliding_window: got \[6\], allowed"),
        ("mistral", dict(sliding_window=True), "sliding_window: got True, allowed"),
        ("qwen2", dict(use_sliding_window=1), "use_sliding_window: got 1, allowed is true or"),
        (
            "qwen2",
            dict(use_sliding_window=True, sliding_window=-6),
            "sliding_window: got -6, allowed is a whole number",
        ),
        ("qwen2", dict(max_window_layers=-1), "max_window_layers: got -1, allowed is a whole"),
        ("qwen3", dict(max_window_layers=1.0), "max_window_layers: got 1.0, allowed"),
        ("qwen3", dict(max_window_layers=True), "max_window_layers: got True, allowed"),
        ("qwen2", dict(max_window_layers=2**40), "max_window_layers: got 1099511627776, allowed"),
        ("qwen2", dict(max_window_layers=None), "max_window_layers: got None, allowed"),
        (
            "qwen3",
            dict(layer_types=[["x"], ["y"], ["z"]]),
            r"layer_types: got \[\['x'\].*, allowed",
        ),
        ("llama", dict(layer_types=[{}, 1, None]), r"layer_types: got \[\{\}, 1, None\], allowed"),
        ("llama", dict(layer_types=["x"] * 10**5), r"layer_types: got .{200}\.\.\., allowed is a"),
        ("qwen3", dict(layer_types=[FULL] * 2), "layer_types: got .*, allowed is a list of 3"),
        ("qwen3", dict(layer_types=FULL), "layer_types: got 'full_attention', allowed is a list"),
        (
            "qwen2",
            dict(layer_types=[FULL, "chunked_attention", FULL]),
            f"layer_types: got .*chunked_attention.*, allowed is .* {FULL}, {SLIDING}",
        ),
        (
            "qwen2",
            dict(layer_types=[FULL, SLIDING, FULL], sliding_window=6),
            "layer_types: got sliding_attention, but sliding_window is off",
        ),
    ],
)
def test_an_impossible_flag_or_window_is_refused(model_type, change, words):
    with pytest.raises(ValueError, match=words):
        read(model_type, **change)


@pytest.mark.parametrize(
    ("model_type", "change", "window", "layers"),
    [
        ("llama", dict(sliding_window=6), None, ()),
        ("mistral", dict(sliding_window=6), 6, (0, 1, 2)),
        ("mistral", dict(), 4096, (0, 1, 2)),
        ("mistral", dict(sliding_window=None), None, ()),
        ("mistral", dict(sliding_window=6, layer_types=[FULL, SLIDING, FULL]), 6, (1,)),
        ("qwen2", dict(sliding_window=6), None, ()),
        ("qwen2", dict(sliding_window=6, use_sliding_window=False), None, ()),
        ("qwen2", dict(sliding_window=None, use_sliding_window=True), None, ()),
        ("qwen2", dict(sliding_window=6, use_sliding_window=True), 6, ()),  # 28 is the default
        (
            "qwen3",
            dict(sliding_window=6, use_sliding_window=True, max_window_layers=0),
            6,
            (0, 1, 2),
        ),
        (
            "qwen3",
            dict(sliding_window=6, use_sliding_window=True, max_window_layers=2),
            6,
            (2,),
        ),
        (
            "qwen3",
            dict(
                sliding_window=6,
                use_sliding_window=True,
                max_window_layers=0,
                layer_types=[SLIDING, FULL, FULL],
            ),
            6,
            (0,),
        ),
    ],
)
def test_which_layers_have_the_window(model_type, change, window, layers):
    config = read(model_type, **change)
    assert (config.sliding_window, config.sliding_layers) == (window, layers)
    assert [config.window(i) for i in range(3)] == [
        window if i in layers else None for i in (0, 1, 2)
    ]


def test_flags_of_the_families():
    names = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm")

    def flags(config):
        return tuple(getattr(config, name) for name in names)

    assert flags(read("llama")) == (False, False, False, False)
    assert flags(read("llama", attention_bias=True, mlp_bias=True)) == (True, True, True, False)
    assert flags(read("mistral")) == (False, False, False, False)
    assert flags(read("qwen2")) == (True, False, False, False)
    assert flags(read("qwen3")) == (False, False, False, True)
    assert flags(read("qwen3", attention_bias=True)) == (True, True, False, True)


def test_what_may_be_missing():
    config = read("llama", num_key_value_heads=None, max_position_embeddings=None)
    assert (config.num_kv_heads, config.head_dim, config.max_position) == (4, 8, 2048)
    assert (config.norm_eps, config.tie_word_embeddings) == (1e-6, False)
    assert config.rope == RopeConfig(theta=10000.0)
    assert qwen3.read_config(BASE).head_dim == 128
    assert read("llama", hidden_act="swish", partial_rotary_factor=1.0) == read("llama")


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3, YARN])
@pytest.mark.parametrize("type_key", ["type", "rope_type"])
def test_every_spelling_of_rope_gives_one_config(scaling, type_key):
    new = read(rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 5e5})
    if scaling is not None:
        scaling = {type_key if k == "rope_type" else k: v for k, v in scaling.items()}
    old = read(rope_theta=5e5, rope_scaling=scaling)
    assert old == new and old.rope.theta == 5e5
    assert old.rope.kind == ("default" if scaling is None else scaling[type_key])
    both = read(
        rope_theta=5e5,
        rope_scaling=scaling,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 5e5}
        | {"rope_type": old.rope.kind},
    )
    assert both == new


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 128),
        ({"rope_type": "linear", "factor": 2.5}, 320),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        (LLAMA3, 128),
        (YARN, 256),
        (YARN | {"factor": 1.5}, 128),
        (without(YARN, "factor"), 128),
        (without(YARN, "original_max_position_embeddings"), 512),
    ],
)
def test_context_length(scaling, context):
    assert read(rope_scaling=scaling).max_position == context


def test_original_context_and_implied_factor():
    assert read(rope_scaling=LLAMA3).rope.original_max_position == 64
    assert read(rope_scaling=without(LLAMA3, "original_max_position_embeddings")).rope == (
        RopeConfig(
            kind="llama3",
            factor=8.0,
            original_max_position=128,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        )
    )
    dynamic = {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 64}
    assert read(rope_scaling=dynamic).rope.original_max_position == 128
    assert read(rope_scaling=without(YARN, "factor")).rope.factor == 2.0
    outer = read(rope_scaling=YARN, original_max_position_embeddings=32)
    assert outer.rope.original_max_position == 32


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
        ({"attention_factor": 1.5, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.5),
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
        ),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
        ({"mscale": 2.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
    ],
)
def test_attention_factor_of_yarn(fields, expected):
    assert read(rope_scaling=YARN | fields).rope.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *[
            ({name: layers}, rf"{name}: got {re.escape(repr(list(layers)))}, allowed is 0..")
            for name in ("feature_layers", "sliding_layers")
            for layers in ((1.5,), (True,), ("1",), (None,), (-1,), (4,), (2**40,))
        ],
        (dict(sliding_layers=(3,)), r"sliding_layers: got \[3\], allowed is 0..2"),
        *[
            ({name: value}, f"{name}: got {value!r}, allowed is >= 1")
            for name in (
                *("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads"),
                *("head_dim", "intermediate_size", "max_position", "sliding_window"),
            )
            for value in (0, 2.0, True, "2", 2**31)
        ],
        (dict(max_position=1e30), r"max_position: got 1e\+30, allowed is >= 1"),
        (dict(num_layers=10**9), "num_layers: got 1000000000, allowed is >= 1, .* <= 4096"),
        (dict(norm_eps=math.nan), "norm_eps: got nan, allowed is a number > 0"),
        (dict(norm_eps=math.inf), "norm_eps: got inf, allowed is a number > 0"),
        (dict(norm_eps=0.0), "norm_eps: got 0.0, allowed is a number > 0"),
        (dict(num_token_ids=2.0), "num_token_ids: got 2.0, allowed is 1..64"),
        (dict(num_token_ids=65), "num_token_ids: got 65, allowed is 1..64"),
    ],
)
def test_sizes_that_are_no_whole_numbers_are_refused_whoever_builds_them(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(read(), **change)


def test_the_largest_sizes_are_kept():
    config = read(
        "mistral", max_position_embeddings=2**31 - 1, sliding_window=2**31 - 1, vocab_size=2**31 - 1
    )
    assert {config.max_position, config.sliding_window, config.vocab_size} == {2**31 - 1}
    assert dataclasses.replace(config, feature_layers=(0, 3)).feature_layers == (0, 3)
    agreed = read(rope_theta=5e5, rope_scaling={"rope_theta": 500000, "rope_type": "default"})
    assert agreed == read(rope_theta=5e5)


def test_feature_layers_of_both_conventions():
    assert hidden_state_indices([0, 4, 2], "layer_output", 5) == (1, 5, 3)
    assert hidden_state_indices([0, 5, 2], "layer_input", 5) == (0, 5, 2)
    assert hidden_state_indices([], "layer_input", 5) == ()


@pytest.mark.parametrize(
    ("ids", "convention", "words"),
    [
        ([0, 5], "layer_output", r"ids: got \[0, 5\], allowed are whole numbers 0..4 with .* of 5"),
        ([6], "layer_input", r"ids: got \[6\], allowed are whole numbers 0..5 with a target of 5"),
        ([-1], "layer_output", r"ids: got \[-1\], allowed"),
        ([-1], "layer_input", r"ids: got \[-1\], allowed"),
        ([True], "layer_input", r"ids: got \[True\], allowed"),
        ([1.0, 2], "layer_input", r"ids: got \[1.0, 2\], allowed"),
        ([1], "output", "convention: got 'output', allowed is one of layer_output, layer_input"),
    ],
)
def test_impossible_feature_layers_are_refused(ids, convention, words):
    with pytest.raises(ValueError, match=words):
        hidden_state_indices(ids, convention, 5, field="ids")


def test_eagle3_default():
    assert eagle3_default(32) == (2, 16, 29)
    assert eagle3_default(7) == (2, 3, 4)


@pytest.mark.parametrize("num_layers", range(1, 7))
def test_a_target_too_small_for_the_eagle3_default_is_refused(num_layers):
    with pytest.raises(ValueError, match=f"feature_layers: a target of {num_layers} layers has no"):
        eagle3_default(num_layers)
