"""What training begins with: widths of features, and EAGLE-3's closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.training.batch import Batch, Signals
from asd_jax.training.feature_scale import feature_scale, folded, scaled, unfolded
from asd_jax.training.linear_start import best_scale, linear_start

WIDTHS = np.array([1.0, 100.0, 0.01, 5.0, 2.0, 3.0], np.float32)
DIM = 3


def texts(seed, weight=None):
    """Two texts whose next hidden state is a linear map of the features."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(2, 12, 6)).astype(np.float32) * WIDTHS
    weight = np.zeros((DIM, 6)) if weight is None else weight
    hidden = np.zeros((2, 12, DIM), np.float32)
    hidden[:, 1:] = features[:, :-1] @ weight.T
    batch = Batch(jnp.zeros((2, 12), jnp.int32), jnp.asarray([12, 9]), jnp.asarray([4, 3]))
    return batch, Signals(features=jnp.asarray(features), hidden=jnp.asarray(hidden))


def test_scales_are_the_widths_of_real_tokens():
    several = [texts(seed) for seed in range(60)]
    measured = feature_scale(several)
    np.testing.assert_allclose(measured, WIDTHS, rtol=0.1)
    # Padding does not count.
    batch, signals = several[0]
    padded = signals.replace(features=signals.features.at[1, 9:].set(1e6))
    np.testing.assert_array_equal(feature_scale([(batch, padded)]), feature_scale([several[0]]))
    silent = signals.replace(features=jnp.zeros_like(signals.features))
    assert feature_scale([(batch, silent)]).tolist() == [1.0] * 6
    with pytest.raises(ValueError, match="texts: got none"):
        feature_scale([])


def test_folded_weights_read_what_was_not_scaled():
    _, signals = texts(0)
    params = {"fc/weight": jnp.asarray(np.random.default_rng(1).normal(size=(DIM, 6))), "x": 1}
    own = folded(params, WIDTHS)
    np.testing.assert_allclose(
        signals.features @ own["fc/weight"].T,
        scaled(signals, WIDTHS).features @ params["fc/weight"].T,
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    np.testing.assert_allclose(unfolded(own, WIDTHS)["fc/weight"], params["fc/weight"], rtol=1e-6)
    assert own["x"] == 1


def fresh():
    rng = np.random.default_rng(2)
    shapes = {
        "fc/weight": (DIM, 6),
        "norm/weight": (DIM,),
        "layer/self_attn/o_proj/weight": (DIM, DIM),
        "layer/mlp/down_proj/weight": (DIM, 5),
        "layer/mlp/up_proj/weight": (5, DIM),
    }
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def test_the_closed_form_finds_a_linear_map_and_switches_the_layer_off():
    weight = np.random.default_rng(3).normal(size=(DIM, 6)) / WIDTHS
    several = [(b, scaled(s, WIDTHS)) for b, s in (texts(seed, weight) for seed in range(40))]
    head = jnp.asarray(np.random.default_rng(4).normal(size=(7, DIM)), jnp.float32)
    before = fresh()
    first = linear_start(before, head, several)
    np.testing.assert_allclose(first["fc/weight"], weight * WIDTHS, atol=0.02)
    assert not np.asarray(first["layer/self_attn/o_proj/weight"]).any()
    assert not np.asarray(first["layer/mlp/down_proj/weight"]).any()
    np.testing.assert_array_equal(
        first["layer/mlp/up_proj/weight"], before["layer/mlp/up_proj/weight"]
    )
    assert len(set(np.asarray(first["norm/weight"]).tolist())) == 1


def test_only_labels_are_fitted():
    weight = np.random.default_rng(3).normal(size=(DIM, 6)) / WIDTHS
    several = []
    for seed in range(40):
        batch, signals = texts(seed, weight)
        # Before the answer, and behind the end of a text, something else goes on.
        hidden = signals.hidden.at[0, :3].set(99.0).at[1, :2].set(99.0).at[1, 9:].set(99.0)
        several.append((batch, scaled(signals.replace(hidden=hidden), WIDTHS)))
    first = linear_start(fresh(), jnp.ones((7, DIM)), several)
    np.testing.assert_allclose(first["fc/weight"], weight * WIDTHS, atol=0.02)


def test_the_scale_is_the_one_of_least_cross_entropy():
    rng = np.random.default_rng(5)
    head = jnp.asarray(rng.normal(size=(11, DIM)), jnp.float32)
    hidden = rng.normal(size=(200, DIM)).astype(np.float32)
    width = float(np.sqrt(np.mean(np.square(hidden))))
    noise = rng.normal(size=(200, DIM)).astype(np.float32)

    def loss(scale, predicted):
        unit = predicted / np.sqrt(np.mean(np.square(predicted), axis=1, keepdims=True))
        log_q = jax.nn.log_softmax(jnp.asarray(unit * scale) @ head.T, axis=-1)
        p = jax.nn.softmax(jnp.asarray(hidden) @ head.T, axis=-1)
        return float(-jnp.mean(jnp.sum(p * log_q, axis=-1)))

    sure = best_scale(head, hidden, hidden)
    unsure = best_scale(head, hidden + 2 * noise, hidden)
    assert unsure < sure
    for scale, predicted in ((sure, hidden), (unsure, hidden + 2 * noise)):
        best = loss(scale, predicted)
        assert all(best <= loss(other * width, predicted) + 1e-6 for other in (0.1, 0.5, 1.0, 1.4))


def test_a_drafter_without_fc_is_refused():
    params = {k: v for k, v in fresh().items() if k != "fc/weight"}
    with pytest.raises(ValueError, match="fc: got None"):
        linear_start(params, jnp.ones((7, DIM)), [texts(0)])
    with pytest.raises(ValueError, match="texts: got none"):
        linear_start(fresh(), jnp.ones((7, DIM)), [])
