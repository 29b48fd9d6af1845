"""Features on disk: what is read is what the target said, and what is damaged is asked again."""

from __future__ import annotations

import errno
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from asd_jax.training import feature_store
from asd_jax.training.batch import Signals
from asd_jax.training.batches import batch_at, padded_batch, padded_lengths, rows_at
from asd_jax.training.feature_store import ASKED, SHARD, FeatureStore, FeatureStoreError, rounded
from tests.training.example_sets import make_examples

DIM, LAYERS = 6, (1, 3)
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, 50, size=RNG.integers(4, 40)).tolist() for _ in range(2 * SHARD + 5)]
EXAMPLES = make_examples(TEXTS, [2] * len(TEXTS), held_out=(0, 7))
BUCKETS = padded_lengths(EXAMPLES)


class Target:
    """Says of a token something that depends on itself, its place and the layer."""

    def __init__(self, layers=LAYERS):
        self.layers, self.asked = layers, 0

    def __call__(self, batch):
        self.asked += 1
        tokens = np.asarray(batch.tokens)[..., None].astype(np.float32)
        place = np.arange(tokens.shape[1], dtype=np.float32)[None, :, None]
        unit = np.arange(1, DIM + 1, dtype=np.float32)
        said = [np.sin(tokens * unit + place / (layer + 1)) for layer in (*self.layers, 9)]
        return Signals(
            features=jnp.asarray(np.concatenate([*said[:-1], tokens[..., :0]], axis=-1)),
            hidden=jnp.asarray(said[-1]),
        )


def fill(store, target):
    def padded(rows):
        return padded_batch(EXAMPLES, rows, ASKED, BUCKETS)

    return list(store.fill(target, padded))


def open_store(folder, *, layers=LAYERS, digest="target", max_bytes=2**30):
    return FeatureStore(
        folder,
        EXAMPLES,
        target_digest=digest,
        feature_layers=layers,
        dtype=jnp.float32,
        max_bytes=max_bytes,
    )


def assert_reads_as_asked(store, target, steps=12):
    for step in range(steps):
        rows = rows_at(EXAMPLES, step, batch_size=4, seed=0)
        batch = batch_at(EXAMPLES, step, batch_size=4, seed=0, buckets=BUCKETS)
        got, said = store.read(rows, *batch.tokens.shape), target(batch)
        for index, length in enumerate(EXAMPLES.lengths[rows]):
            for a, b in ((got.features, said.features), (got.hidden, said.hidden)):
                wanted = np.asarray(b)[index, :length].astype(ml_dtypes.bfloat16)
                np.testing.assert_array_equal(
                    np.asarray(a)[index, :length], wanted.astype(np.float32)
                )
                assert not np.asarray(a)[index, length:].any()
        assert got.hidden.dtype == jnp.float32


def test_what_is_read_is_what_was_said_rounded(tmp_path):
    store, target = open_store(tmp_path), Target()
    filled = fill(store, target)
    assert [f.done for f in filled] == [1, 2, 3] and not any(f.was_there for f in filled)
    assert target.asked == 4 + 4 + 1
    assert_reads_as_asked(store, target)
    again = Target()
    assert all(f.was_there for f in fill(open_store(tmp_path), again)) and again.asked == 0


def test_the_same_numbers_as_without_a_store():
    said = Target()(padded_batch(EXAMPLES, np.arange(1, 4), 4, BUCKETS))
    kept = rounded(said)
    assert kept.hidden.dtype == said.hidden.dtype
    np.testing.assert_array_equal(
        kept.features, np.asarray(said.features).astype(ml_dtypes.bfloat16).astype(np.float32)
    )


def test_drafters_share_the_taps_that_they_have_in_common(tmp_path):
    fill(open_store(tmp_path), Target())
    medusa = Target(())
    store = open_store(tmp_path, layers=())
    assert all(f.was_there for f in fill(store, medusa))
    rows = np.asarray([3, 9])
    assert store.read(rows, 2, 64).features.shape == (2, 64, 0)
    other = Target((1, 2))
    store = open_store(tmp_path, layers=(1, 2))
    assert not any(f.was_there for f in fill(store, other))
    assert_reads_as_asked(store, other)
    assert len(list(tmp_path.rglob("*.npy"))) == 3 * 4  # layers 1, 2, 3 and hidden, once each


def test_another_target_has_another_folder(tmp_path):
    fill(open_store(tmp_path), Target())
    assert open_store(tmp_path, digest="other").read(np.asarray([1]), 1, 64) is None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["flipped", "short", "no checksum", "partial"])
def test_what_is_damaged_is_asked_again(tmp_path, damage):
    fill(open_store(tmp_path), Target())
    path = next(tmp_path.rglob("00001.layer_3.npy"))
    content = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "short":
        path.write_bytes(content[:-10])
    else:
        path.with_suffix(".json").unlink()
        if damage == "partial":
            path.unlink()
            path.with_suffix(".partial").write_bytes(content[:100])
    store, target = open_store(tmp_path), Target()
    assert [f.was_there for f in fill(store, target)] == [True, False, True]
    assert target.asked == SHARD / ASKED
    assert_reads_as_asked(store, target)


def test_what_does_not_fit_is_left_to_the_target(tmp_path):
    store, target = open_store(tmp_path, max_bytes=12_000), Target()
    filled = fill(store, target)
    assert 0 < len(filled) < 3
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.npy")) <= 12_000
    shortest = EXAMPLES.rows()[np.argsort(EXAMPLES.lengths[EXAMPLES.rows()], kind="stable")]
    assert store.read(shortest[:4], 4, 64) is not None
    assert store.read(shortest[-4:], 4, 64) is None
    assert store.read(np.asarray([shortest[0], shortest[-1]]), 2, 64) is None


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(file, array):
        file.write(b"begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feature_store.np, "save", full)
    store = open_store(tmp_path)
    with pytest.raises(FeatureStoreError, match="No space left on device.*feature_cache.gib"):
        fill(store, Target())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FeatureStoreError, match="cannot be made"):
        open_store(Path(tmp_path / "file" / "below"))
