"""Sampling: one transform in HF's order, and noise that only seed and position decide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import sampling
from asd_jax.sampling import SamplingParams, perturb, rule_key, sampling_params

T, V = 6, 33
transform = jax.jit(sampling.transform)
perturbed = jax.jit(perturb)
gumbel_noise = jax.jit(sampling.gumbel_noise, static_argnums=2)


def params_of(**settings) -> SamplingParams:
    """Returns the parameters of one request."""
    return jax.tree.map(lambda leaf: leaf[0], sampling_params(1, **settings))


def random_logits(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(T, V)) * 2.5).astype(np.float32)


def transform_loop(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Temperature, then top-k, then top-p over what top-k left, in float64, row by row."""
    out = np.asarray(logits, np.float64) / np.float64(np.float32(temperature))
    for row in out:
        if top_k:
            row[row < np.sort(row)[::-1][min(top_k, len(row)) - 1]] = -np.inf
        if top_p < 1:
            weights = np.exp(row - row.max())
            weights /= weights.sum()
            order = np.argsort(-row, kind="stable")
            before, last = 0.0, order[0]
            for token in order:
                # A case that rounding could decide would test nothing: the seeds avoid them.
                assert abs(before - np.float32(top_p)) > 1e-5
                if before >= np.float32(top_p):
                    break
                last = token
                before += weights[token]
            row[row < row[last]] = -np.inf
    return out


SETTINGS = [
    (0.7, 0, 1.0),
    (1.0, 5, 1.0),
    (1.0, 1, 1.0),
    (1.3, 0, 0.9),
    (0.5, 0, 0.3),
    (2.0, 8, 0.8),
    (1.0, 3, 0.05),
    (1.0, V, 0.95),
    (1.0, 10 * V, 0.5),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_transform_is_temperature_then_top_k_then_top_p(temperature, top_k, top_p):
    logits = random_logits(1)
    want = transform_loop(logits, temperature, top_k, top_p)
    got = np.asarray(
        transform(logits, params_of(temperature=temperature, top_k=top_k, top_p=top_p))
    )
    assert got.dtype == np.float32
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_top_p_counts_the_mass_that_top_k_left():
    # Softmax of the row is 0.4, 0.3, 0.2, 0.1; of the best two alone it is 4/7, 3/7.
    logits = np.log(np.asarray([[0.4, 0.3, 0.2, 0.1]], np.float32))
    both = transform(logits, params_of(temperature=1.0, top_k=2, top_p=0.5))
    assert np.isfinite(both).tolist() == [[True, False, False, False]]
    only_p = transform(logits, params_of(temperature=1.0, top_p=0.5))
    assert np.isfinite(only_p).tolist() == [[True, True, False, False]]


def test_temperature_comes_before_top_p():
    logits = np.log(np.asarray([[0.4, 0.3, 0.2, 0.1]], np.float32))
    for temperature, kept in ((0.25, 1), (1.0, 2), (50.0, 3)):
        got = transform(logits, params_of(temperature=temperature, top_p=0.6))
        assert np.isfinite(got).sum() == kept


def test_ties_with_the_last_kept_token_stay():
    logits = np.asarray([[1.0, 3.0, 2.0, 2.0, 0.0]], np.float32)
    kept = [[False, True, True, True, False]]
    assert np.isfinite(transform(logits, params_of(temperature=1.0, top_k=2))).tolist() == kept
    # 3.0 has a mass of 0.51 here, so a nucleus of 0.6 ends inside the tie.
    assert np.isfinite(transform(logits, params_of(temperature=1.0, top_p=0.6))).tolist() == kept


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_temperature_zero_returns_the_logits_unchanged_whatever_the_masks(dtype):
    logits = random_logits(2).astype(dtype)
    logits[0, 3], logits[1, 4], logits[2, 5] = np.nan, -np.inf, np.inf
    params = params_of(temperature=0.0, top_k=1, top_p=0.1)
    for got in perturbed(logits, params, jnp.int32(3)):  # the first is `transform`'s
        assert np.array_equal(got, logits.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [*SETTINGS, (1e-3, 2, 0.1), (99, 0, 1e-6)]
)
def test_the_argmax_survives_every_mask(temperature, top_k, top_p):
    logits = random_logits(3)
    got = np.asarray(
        transform(logits, params_of(temperature=temperature, top_k=top_k, top_p=top_p))
    )
    assert np.array_equal(got.argmax(-1), logits.argmax(-1))
    assert np.isfinite(got.max(-1)).all()


@pytest.mark.parametrize("settings", [{}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 2, "top_p": 0.5}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nan_logit_shows_in_its_row_and_in_no_other(temperature, settings):
    logits = random_logits(4)
    logits[2, 7] = np.nan
    params = params_of(temperature=temperature, **settings)
    for got in perturbed(logits, params, jnp.int32(0)):
        assert np.isnan(got).any(-1).tolist() == [False, False, True, False, False, False]
        assert np.isnan(got[2, 7])


def test_a_masked_token_stays_masked_under_the_noise():
    logits = random_logits(5)
    logits[:, ::2] = -np.inf
    clean, noisy = perturbed(logits, params_of(temperature=1.0, top_k=4), jnp.int32(0))
    assert (np.isfinite(clean).sum(-1) == 4).all()
    assert np.array_equal(np.isfinite(clean), np.isfinite(noisy))
    assert not np.isnan(noisy).any()


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (1.0, 7, 0.9)])
def test_noise_of_a_block_is_the_noise_of_its_rows_at_shifted_positions(temperature, top_k, top_p):
    logits = random_logits(6)
    params = params_of(temperature=temperature, top_k=top_k, top_p=top_p, seed=11)
    whole = np.asarray(perturbed(logits, params, jnp.int32(40)))
    one_row = [
        np.asarray(perturbed(logits[i : i + 1], params, jnp.int32(40 + i))) for i in range(T)
    ]
    assert np.concatenate(one_row, axis=1).tobytes() == whole.tobytes()


def test_noise_of_a_request_does_not_depend_on_its_place_in_the_batch():
    logits = np.stack([random_logits(seed) for seed in range(3)])
    settings = {"temperature": [0.7, 1.0, 0.0], "top_k": [0, 4, 0], "top_p": [0.9, 1.0, 1.0]}
    batch = sampling_params(3, seed=[5, 6, 7], **settings)
    position = np.asarray([9, 0, 77], np.int32)
    run = jax.jit(jax.vmap(perturb))
    together = run(logits, batch, position)
    order = np.asarray([2, 0, 1])
    shuffled = run(logits[order], jax.tree.map(lambda leaf: leaf[order], batch), position[order])
    for i, row in enumerate(order):
        alone = perturbed(
            logits[row], jax.tree.map(lambda leaf, row=row: leaf[row], batch), position[row]
        )
        for a, b, c in zip(together, shuffled, alone, strict=True):
            assert np.asarray(a[row]).tobytes() == np.asarray(b[i]).tobytes()
            assert np.asarray(a[row]).tobytes() == np.asarray(c).tobytes()


def test_noise_is_the_same_for_any_logits_temperature_and_mask():
    """Drafter and target draw with the same noise, whatever each adds it to."""
    noise = np.asarray(gumbel_noise(params_of(seed=3).key, jnp.int32(12), V))
    for seed, temperature in ((0, 1.0), (1, 0.5)):
        params = params_of(temperature=temperature, seed=3)
        clean, noisy = perturbed(random_logits(seed), params, jnp.int32(12))
        assert np.array_equal(noisy[0], np.asarray(clean[0]) + noise)


def test_neighbouring_positions_and_streams_have_different_noise():
    key = params_of(seed=3).key
    draws = [np.asarray(gumbel_noise(key, jnp.int32(p), V)) for p in range(8)]
    draws.append(np.asarray(jax.random.gumbel(rule_key(key, jnp.int32(0)), (V,))))
    draws.append(np.asarray(jax.random.gumbel(key, (V,))))
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert not np.any(a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (0, 1),
        (0, 2**32),
        (1, 2**32 + 1),
        (7, 7 + 2**40),
        (2**32, 2**33),
        (1, 2**32),
        (0, 2**63 - 1),
    ],
)
def test_different_seeds_give_different_noise_also_above_32_bits(a, b):
    assert sampling_params(1, seed=a).key != sampling_params(1, seed=b).key
    first, second = (
        np.asarray(gumbel_noise(params_of(seed=seed).key, jnp.int32(0), V)) for seed in (a, b)
    )
    assert not np.any(first == second)
    again = np.asarray(gumbel_noise(params_of(seed=a).key, jnp.int32(0), V))
    assert np.array_equal(first, again)


# --- distribution -----------------------------------------------------------------------------

DRAWS, SIZE = 20000, 8
CRITICAL_7 = 24.32  # chi-square, 7 degrees of freedom, upper 0.1 %
CRITICAL_4 = 18.47  # 4 degrees of freedom
CRITICAL_49 = 85.35  # 49 degrees of freedom: an 8 x 8 table with estimated margins
ROW = np.asarray([0.0, 1.0, -1.5, 0.3, 0.3, 2.0, -0.7, -3.0], np.float32)


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def draws_over_positions(**settings) -> np.ndarray:
    rows = np.broadcast_to(ROW, (DRAWS, SIZE))
    _, noisy = perturbed(rows, params_of(**settings), jnp.int32(0))
    return np.asarray(noisy).argmax(-1)


@pytest.mark.parametrize(("temperature", "seed"), [(1.0, 1), (0.7, 2**40 + 2), (1.8, 3)])
def test_over_positions_tokens_are_drawn_from_the_softmax(temperature, seed):
    tokens = draws_over_positions(temperature=temperature, seed=seed)
    counts = np.bincount(tokens, minlength=SIZE)
    assert chi_square(counts, softmax(ROW / temperature)) < CRITICAL_7
    # The test has the power to see a temperature that is 5 % off.
    assert chi_square(counts, softmax(ROW / (temperature * 1.05))) > CRITICAL_7


def test_under_masks_tokens_are_drawn_from_the_renormalised_softmax():
    tokens = draws_over_positions(temperature=1.0, top_k=6, top_p=0.9, seed=4)
    kept = np.isfinite(transform_loop(ROW[None], 1.0, 6, 0.9)[0])
    counts = np.bincount(tokens, minlength=SIZE)
    assert kept.sum() == 5 and counts[~kept].sum() == 0
    assert chi_square(counts[kept], softmax(ROW[kept])) < CRITICAL_4


def test_tokens_at_neighbouring_positions_are_independent():
    tokens = draws_over_positions(temperature=1.5, seed=5)
    pairs = np.bincount(tokens[:-1] * SIZE + tokens[1:], minlength=SIZE**2)
    probs = softmax(ROW / 1.5)
    margin = np.bincount(tokens, minlength=SIZE) / DRAWS
    assert chi_square(pairs, np.outer(margin, margin).ravel()) < CRITICAL_49
    dependent = np.outer(probs, probs) * 0.98 + np.diag(probs) * 0.02
    assert chi_square(pairs, dependent.ravel() / dependent.sum()) > CRITICAL_49


def test_over_seeds_tokens_are_drawn_from_the_softmax():
    params = sampling_params(DRAWS, temperature=1.0, seed=list(range(DRAWS)))
    run = jax.jit(jax.vmap(lambda p: perturb(jnp.asarray(ROW)[None], p, jnp.int32(5))[1][0]))
    counts = np.bincount(np.asarray(run(params)).argmax(-1), minlength=SIZE)
    assert chi_square(counts, softmax(ROW)) < CRITICAL_7


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", [1.0, -1.0]),
        ("top_k", -1),
        ("top_k", [0, -5]),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", -0.5),
        ("top_p", float("nan")),
        ("top_p", [1.0, 0.0]),
        ("seed", -1),
        ("seed", [0, -3]),
    ],
)
def test_a_value_out_of_range_is_refused_by_field_and_value(field, value):
    with pytest.raises(ValueError, match=field) as caught:
        sampling_params(2, **{field: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 2.5),
        ("top_k", float("nan")),
        ("top_k", "3"),
        ("top_k", 2**32 + 1),
        ("seed", 1.5),
        ("seed", 2**63),
        ("temperature", "warm"),
        ("temperature", 1e39),
        ("temperature", 9.9e-7),
        ("temperature", [0.0, 1.2e-38]),
        ("top_p", 1e-60),
        ("temperature", [1.0, 0.5, 0.2]),
    ],
)
def test_a_value_that_would_be_changed_silently_is_refused_by_field(field, value):
    with pytest.raises(ValueError, match=field):
        sampling_params(2, **{field: value})


@pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
def test_the_smallest_temperature_keeps_the_best_of_large_logits(size):
    params = params_of(temperature=1e-6)
    logits = size * np.asarray([[0.5, 1.0, 0.999, -1.0]], np.float32)
    clean, noisy = perturbed(logits, params, jnp.int32(0))
    assert np.isfinite(clean).all() and np.argmax(noisy) == 1


def test_one_value_serves_all_requests_and_lists_give_each_its_own():
    params = sampling_params(2, temperature=0.5, top_k=[0, 3], top_p=1, seed=[1, 2])
    assert params.temperature.tolist() == [0.5, 0.5] and params.top_k.tolist() == [0, 3]
    assert params.top_p.tolist() == [1, 1] and params.key[0] != params.key[1]
    dtypes = [getattr(params, name).dtype for name in ("temperature", "top_k", "top_p")]
    assert dtypes == [np.float32, np.int32, np.float32]


def test_changing_a_value_does_not_recompile():
    perturbed(random_logits(0), params_of(), jnp.int32(1))
    compiled = perturbed._cache_size()
    for settings in ({"temperature": 1.0}, {"temperature": 0.3, "top_k": 3, "top_p": 0.4}):
        perturbed(random_logits(0), params_of(**settings), jnp.int32(2))
    assert perturbed._cache_size() == compiled


# --- against transformers ---------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_transform_equals_the_warpers_of_transformers(temperature, top_k, top_p):
    import torch
    import transformers

    logits = random_logits(1)
    warped = torch.from_numpy(logits.copy())
    warped = transformers.TemperatureLogitsWarper(float(temperature))(None, warped)
    if top_k:
        warped = transformers.TopKLogitsWarper(top_k)(None, warped)
    if top_p < 1:
        warped = transformers.TopPLogitsWarper(top_p)(None, warped)
    got = np.asarray(
        transform(logits, params_of(temperature=temperature, top_k=top_k, top_p=top_p))
    )
    assert np.array_equal(np.isfinite(got), np.isfinite(warped.numpy()))
    np.testing.assert_allclose(got, warped.numpy(), rtol=1e-6)


@pytest.mark.parity
def test_ties_stay_like_transformers_in_top_k_and_unlike_it_in_top_p():
    """Transformers cuts a tie at the edge of the nucleus by sort order; ours keeps it whole."""
    import torch
    import transformers

    logits = np.asarray([[1.0, 3.0, 2.0, 2.0, 0.0]], np.float32)
    top_k = transformers.TopKLogitsWarper(2)(None, torch.from_numpy(logits.copy())).numpy()
    ours = transform(logits, params_of(temperature=1.0, top_k=2))
    assert np.array_equal(np.isfinite(ours), np.isfinite(top_k))
    top_p = transformers.TopPLogitsWarper(0.6)(None, torch.from_numpy(logits.copy())).numpy()
    ours = np.isfinite(transform(logits, params_of(temperature=1.0, top_p=0.6)))
    assert np.isfinite(top_p).sum() == 2 and ours.sum() == 3
    assert not np.any(np.isfinite(top_p) & ~ours)
