"""Attention over a cache, against numpy written out query by query."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.models.attend import attend, attend_at_once, attend_in_chunks


def written_out(q, keys, values, seen_to, window):
    """float64, one query at a time."""
    batch, num_kv_heads, _, head_dim = keys.shape
    num_heads, _, columns = q.shape
    out = np.zeros((num_heads, head_dim, columns))
    num_tokens = columns // batch
    for head in range(num_heads):
        kv = head // (num_heads // num_kv_heads)
        for row in range(batch):
            for token in range(num_tokens):
                last = seen_to[row, token]
                low = 0 if window is None else max(last - window + 1, 0)
                k, v = (x[row, kv, low : last + 1].astype(np.float64) for x in (keys, values))
                scores = k @ q[head, :, row * num_tokens + token] * head_dim**-0.5
                weights = np.exp(scores - scores.max())
                out[head, :, row * num_tokens + token] = weights @ v / weights.sum()
    return out.reshape(num_heads * head_dim, columns)


def case(num_slots, *, num_tokens=3, seed=0):
    rng = np.random.default_rng(seed)
    batch, num_kv_heads, group, head_dim = 3, 2, 2, 8
    q = rng.normal(size=(num_kv_heads * group, head_dim, batch * num_tokens))
    keys, values = rng.normal(size=(2, batch, num_kv_heads, num_slots, head_dim)) * 3
    length = rng.integers(0, num_slots - num_tokens + 1, batch)
    seen_to = length[:, None] + np.arange(num_tokens)
    return (*(x.astype(np.float32) for x in (q, keys, values)), seen_to.astype(np.int32))


@pytest.mark.parametrize("num_slots", [7, 128, 129, 300, 384])
@pytest.mark.parametrize("window", [None, 1, 5, 140])
def test_equals_attention_written_out(num_slots, window):
    for seed in range(3):
        q, keys, values, seen_to = case(num_slots, seed=seed)
        got = jax.jit(attend, static_argnames="sliding_window")(
            q, keys, values, seen_to, sliding_window=window
        )
        np.testing.assert_allclose(
            got, written_out(q, keys, values, seen_to, window), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize("chunk", [1, 4, 9, 32, 100])
@pytest.mark.parametrize("window", [None, 6])
def test_chunks_of_any_size_equal_one_softmax(chunk, window):
    q, keys, values, seen_to = case(33)
    q = q.reshape(2, 2, 8, 3, 3).transpose(3, 0, 4, 1, 2).reshape(3, 2, 6, 8)
    seen_to = np.repeat(seen_to, 2, axis=1)
    np.testing.assert_allclose(
        attend_in_chunks(q, keys, values, seen_to, sliding_window=window, chunk=chunk),
        attend_at_once(q, keys, values, seen_to, sliding_window=window),
        rtol=2e-5,
        atol=2e-5,
    )


def test_a_row_has_the_same_bits_beside_a_longer_one():
    q, keys, values, seen_to = case(400)
    seen_to[0] = [3, 4, 5]
    longer, shorter = seen_to.copy(), seen_to.copy()
    longer[1:], shorter[1:] = 399, 0
    columns = slice(0, 3)
    np.testing.assert_array_equal(
        np.asarray(attend(q, keys, values, longer))[:, columns],
        np.asarray(attend(q, keys, values, shorter))[:, columns],
    )


def test_slots_that_nobody_sees_are_not_read():
    """Chunks behind the longest row hold what was rolled back, be it no number at all."""
    q, keys, values, seen_to = case(400)
    seen_to %= 100
    keys[:, :, 128:], values[:, :, 128:] = np.nan, np.nan
    assert np.isfinite(np.asarray(attend(q, keys, values, jnp.asarray(seen_to)))).all()
