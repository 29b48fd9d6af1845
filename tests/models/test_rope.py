"""Rotary embeddings: every kind against its published formula, written here a second time."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.models.rope import KINDS, RopeConfig, apply_rope, rope_tables

HEAD = 16
LINEAR = RopeConfig(theta=100.0, kind="linear", factor=4.0)
DYNAMIC = RopeConfig(theta=100.0, kind="dynamic", factor=4.0, original_max_position=10)
LLAMA3 = RopeConfig(
    theta=100.0,
    kind="llama3",
    factor=8.0,
    original_max_position=32,
    low_freq_factor=0.5,
    high_freq_factor=2.0,
)
YARN = RopeConfig(
    theta=100.0,
    kind="yarn",
    factor=4.0,
    original_max_position=64,
    beta_fast=4.0,
    beta_slow=0.5,
    attention_factor=1.25,
)
CONFIGS = (RopeConfig(theta=100.0), LINEAR, DYNAMIC, LLAMA3, YARN)


def tables(config, positions, head_dim=HEAD):
    cos, sin = rope_tables(config, head_dim, jnp.asarray(positions, jnp.int32))
    return np.asarray(cos), np.asarray(sin)


def check_tables(config, angles, positions, *, scale=1.0):
    """Compares with angles [M, H / 2] in radians."""
    cos, sin = tables(config, positions)
    np.testing.assert_allclose(cos, scale * np.cos(angles).T, atol=1e-5)
    np.testing.assert_allclose(sin, scale * np.sin(angles).T, atol=1e-5)


def plain(theta=100.0, head_dim=HEAD):
    """RoFormer (arXiv 2104.09864), section 3.2.2: theta ** (-2 (i - 1) / d), i from 1."""
    return np.array([theta ** (-2 * (i - 1) / head_dim) for i in range(1, head_dim // 2 + 1)])


POSITIONS = np.array([0, 1, 7, 30, 100])


def test_default_turns_by_position_times_frequency():
    check_tables(RopeConfig(theta=100.0), np.outer(POSITIONS, plain()), POSITIONS)


def test_the_frequencies_of_a_small_head_are_known_numbers():
    assert RopeConfig(theta=100.0).inverse_frequencies(4) == pytest.approx((1.0, 0.1))
    assert LINEAR.inverse_frequencies(4) == pytest.approx((0.25, 0.025))
    # Wavelengths 6.28 and 62.8 beside bounds of 16 and 64: one kept, one almost stretched.
    smooth = (32 / (20 * np.pi) - 0.5) / 1.5
    expected = (1.0, (1 - smooth) * 0.1 / 8 + smooth * 0.1)
    assert LLAMA3.inverse_frequencies(4) == pytest.approx(expected)


def test_linear_divides_positions():
    check_tables(LINEAR, np.outer(POSITIONS / 4.0, plain()), POSITIONS)


def test_llama3_keeps_short_wavelengths_stretches_long_ones_and_blends_between():
    """Source of the formula: meta-llama/llama-models, `models/llama3/model.py`, apply_scaling."""
    freqs = plain()
    wavelength = 2 * np.pi / freqs
    is_short, is_long = wavelength < 32 / 2.0, wavelength > 32 / 0.5
    smooth = (32 / wavelength - 0.5) / (2.0 - 0.5)
    blended = (1 - smooth) * freqs / 8 + smooth * freqs
    expected = np.select([is_short, is_long], [freqs, freqs / 8], blended)
    assert is_short.sum() >= 2 and is_long.sum() >= 2 and (~is_short & ~is_long).sum() >= 2
    check_tables(LLAMA3, np.outer(POSITIONS, expected), POSITIONS)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_blends_by_turns_in_the_original_context(truncate):
    """YaRN (arXiv 2309.00071), section 3.2, with the ramp over features of the authors' code."""
    freqs = plain()
    # Feature i turns L * freq / (2 pi) times in the original context of L tokens; solved for i.
    low, high = (HEAD / 2 * np.log(64 / (2 * np.pi * b)) / np.log(100.0) for b in (4.0, 0.5))
    assert 64 * 100.0 ** (-2 * low / HEAD) / (2 * np.pi) == pytest.approx(4.0)
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    assert 0 < low < high < HEAD / 2
    ramp = np.clip((np.arange(HEAD // 2) - low) / (high - low), 0, 1)
    expected = (1 - ramp) * freqs + ramp * freqs / 4
    config = dataclasses.replace(YARN, truncate=truncate)
    check_tables(config, np.outer(POSITIONS, expected), POSITIONS, scale=1.25)


def test_yarn_of_a_context_too_short_to_turn_stretches_all_but_the_first_feature():
    config = dataclasses.replace(YARN, original_max_position=5, beta_fast=32.0, beta_slow=1.0)
    expected = np.concatenate([plain()[:1], plain()[1:] / 4])
    assert config.inverse_frequencies(HEAD) == pytest.approx(tuple(expected))


def test_attention_factor_scales_both_tables():
    once = tables(dataclasses.replace(YARN, attention_factor=1.0), POSITIONS)
    thrice = tables(dataclasses.replace(YARN, attention_factor=3.0), POSITIONS)
    for one, three in zip(once, thrice, strict=True):
        np.testing.assert_allclose(three, 3 * one, rtol=1e-6)
    np.testing.assert_allclose(thrice[0][:, 0], 3.0)  # the cosines of position 0


def test_dynamic_is_default_up_to_the_original_context():
    positions = np.arange(10)
    for got, expected in zip(
        tables(DYNAMIC, positions), tables(RopeConfig(theta=100.0), positions), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_dynamic_gives_each_later_position_the_base_of_the_text_that_ends_there():
    """NTK-aware base of a text of n tokens: theta (s n / L - (s - 1)) ** (d / (d - 2))."""
    positions = np.array([10, 11, 19, 39, 200])
    bases = [100.0 * (4.0 * (p + 1) / 10 - 3.0) ** (HEAD / (HEAD - 2)) for p in positions]
    assert bases[0] > 100.0
    angles = np.stack([p * plain(base) for p, base in zip(positions, bases, strict=True)])
    check_tables(DYNAMIC, angles, positions)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_position_does_not_depend_on_those_asked_for_beside_it(config):
    together = tables(config, np.arange(48))
    for chunk in ([0], [5, 6, 7], [47, 3, 12], list(range(20, 48))):
        for some, every in zip(tables(config, chunk), together, strict=True):
            np.testing.assert_allclose(some, every[:, chunk], atol=1e-6)


def test_the_configs_above_are_of_every_kind_and_all_differ():
    assert tuple(sorted(config.kind for config in CONFIGS)) == tuple(sorted(KINDS))
    cosines = [tables(config, [25])[0] for config in CONFIGS]
    for i, one in enumerate(cosines):
        for other in cosines[:i]:
            assert np.abs(one - other).max() > 0.1


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="rope kind: got 'longrope', allowed is one of default, "):
        RopeConfig(kind="longrope")


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        *[
            (config, {name: value}, f"rope {name}: got {value!r}, allowed is a number")
            for config in CONFIGS
            for name in ("theta", "factor", "beta_fast", "beta_slow", "attention_factor")
            for value in (INF, NAN, 0.0, -1.0, 1e-320, 10**400, True, "2", None)
        ],
        *[
            (config, dict(theta=1.0), "rope theta: got 1.0, allowed is a number > 1")
            for config in CONFIGS
        ],
        *[
            (config, dict(factor=0.5), "rope factor: got 0.5, allowed is a number in 1")
            for config in CONFIGS
        ],
        (LINEAR, dict(factor=2.0**31), "rope factor: got 2147483648.0, allowed is a number in 1.."),
        (LLAMA3, dict(high_freq_factor=0.5), "rope high_freq_factor: got 0.5, allowed is > low"),
        (LLAMA3, dict(high_freq_factor=0.25), "rope high_freq_factor: got 0.25, allowed is > low"),
        (LLAMA3, dict(low_freq_factor=0.0), "rope low_freq_factor: got 0.0, allowed is a number"),
        (LLAMA3, dict(high_freq_factor=INF), "rope high_freq_factor: got inf, allowed is a number"),
        (YARN, dict(beta_fast=0.25), "rope beta_fast: got 0.25, allowed is >= beta_slow 0.5"),
        *[
            (YARN, dict(original_max_position=value), f"original_max_position: got {value!r}, allo")
            for value in (0, 1e30, 64.0, 2**31, True)
        ],
    ],
)
def test_numbers_without_a_meaning_are_refused(config, change, words):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(config, **change)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        RopeConfig(theta=3e38),
        dataclasses.replace(LINEAR, factor=1.0),
        dataclasses.replace(DYNAMIC, theta=1.0001, factor=2.0**31 - 1),
        dataclasses.replace(LLAMA3, low_freq_factor=1e-37, high_freq_factor=1e38),
        dataclasses.replace(YARN, theta=1.0001, beta_fast=1e38, beta_slow=1.2e-38),
        dataclasses.replace(YARN, beta_fast=0.5, truncate=False),
        dataclasses.replace(YARN, original_max_position=2**31 - 1, factor=2.0**31 - 1),
    ],
)
def test_the_extremes_that_are_allowed_give_finite_tables(config):
    for table in tables(config, [0, 1, 2**31 - 2]):
        assert np.isfinite(table).all()


def test_rope_rotates_pairs_by_position_times_frequency():
    cos, sin = rope_tables(RopeConfig(theta=100.0), 4, jnp.asarray([0, 3], jnp.int32))
    x = jnp.asarray([[1.0, 2.0, 3.0, 4.0]]).T[None]
    x = jnp.concatenate([x, x], axis=2)
    got = np.asarray(apply_rope(x, cos, sin))[0, :, 1]
    for j, frequency in enumerate([1.0, 0.1]):
        z = complex(x[0, j, 0], x[0, j + 2, 0]) * np.exp(1j * 3 * frequency)
        np.testing.assert_allclose([got[j], got[j + 2]], [z.real, z.imag], rtol=1e-5)
    np.testing.assert_array_equal(apply_rope(x, cos, sin)[0, :, 0], x[0, :, 0])


def test_scores_of_rotated_vectors_depend_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, HEAD)).astype(np.float32)
    at = np.array([0, 3, 40, 43])
    cos, sin = rope_tables(RopeConfig(theta=100.0), HEAD, jnp.asarray(at, jnp.int32))
    queries, keys = (
        np.asarray(apply_rope(jnp.tile(jnp.asarray(v)[None, :, None], (1, 1, 4)), cos, sin))[0]
        for v in (query, key)
    )
    scores = queries.T @ keys
    np.testing.assert_allclose(scores[1, 0], scores[3, 2], rtol=1e-4)
    assert abs(scores[1, 0] - scores[3, 0]) > 1e-2
