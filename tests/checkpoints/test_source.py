"""Lazy tensors: slices of every form, padded and repeated rows, against numpy."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.checkpoints.source import TensorSource


def tensor(shape, spans=None):
    """A tensor of consecutive numbers that notes the spans fetched and checks their form."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def fetch(index):
        assert len(index) == len(shape)
        for part, size in zip(index, shape, strict=True):
            assert part.step is None and 0 <= part.start <= part.stop <= size
        if spans is not None:
            spans.append(tuple((part.start, part.stop) for part in index))
        return values[(*index, ...)].copy()

    return TensorSource("w", shape, values.dtype, fetch)


SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7)


def slices(shape):
    return st.tuples(*(st.slices(size) for size in shape))


@given(data=st.data(), shape=SHAPES)
def test_slices_of_any_form_equal_numpy(data, shape):
    index = data.draw(slices(shape))
    part = tensor(shape).read_slice(index)
    np.testing.assert_array_equal(part, tensor(shape).read()[index])
    assert part.flags.c_contiguous


@given(data=st.data(), shape=SHAPES, more=st.integers(0, 6))
def test_padded_rows_equal_numpy(data, shape, more):
    padded = tensor(shape).pad_rows(shape[0] + more)
    want = np.pad(tensor(shape).read(), [(0, more)] + [(0, 0)] * (len(shape) - 1))
    assert padded.shape == want.shape and padded.dtype == want.dtype
    np.testing.assert_array_equal(padded.read(), want)
    index = data.draw(slices(want.shape))
    np.testing.assert_array_equal(padded.read_slice(index), want[index])


@given(
    data=st.data(), tail=SHAPES, block=st.integers(1, 4), count=st.integers(1, 4),
    times=st.integers(1, 4),
)  # fmt: skip
def test_repeated_rows_equal_numpy(data, tail, block, count, times):
    shape = (block * count, *tail[1:])
    repeated = tensor(shape).repeat_rows(block, times)
    blocks = tensor(shape).read().reshape(count, block, *tail[1:])
    want = np.repeat(blocks, times, axis=0).reshape(-1, *tail[1:])
    assert repeated.shape == want.shape
    np.testing.assert_array_equal(repeated.read(), want)
    index = data.draw(slices(want.shape))
    np.testing.assert_array_equal(repeated.read_slice(index), want[index])


def test_combinators_read_only_what_the_slice_needs():
    spans = []
    padded = tensor((6, 4), spans).pad_rows(9)
    padded.read_slice((slice(4, 8), slice(1, 3)))
    assert spans == [((4, 6), (1, 3))]
    padded.read_slice((slice(6, 9),))
    assert len(spans) == 1, "all padding"
    repeated = tensor((6, 4), spans).repeat_rows(2, 3)
    spans.clear()
    repeated.read_slice((slice(8, 10), slice(0, 2)))  # the middle copy of the middle block
    repeated.read_slice((slice(9, 10),))
    assert spans == [((2, 4), (0, 2)), ((3, 4), (0, 4))]


@given(data=st.data())
def test_combinators_compose(data):
    composed = tensor((6, 4)).repeat_rows(2, 2).transpose().pad_rows(7).astype(np.float64)
    want = np.repeat(tensor((6, 4)).read().reshape(3, 2, 4), 2, axis=0).reshape(12, 4)
    want = np.pad(want.T, [(0, 3), (0, 0)]).astype(np.float64)
    index = data.draw(slices(want.shape))
    got = composed.read_slice(index)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, want[index])


@pytest.mark.parametrize("shape", [(), (6, 4)])
def test_rows_that_cannot_be_padded_or_repeated_are_refused(shape):
    with pytest.raises(ValueError, match=r"num_rows: got 5, tensor 'w'"):
        tensor(shape).pad_rows(5)
    for block, times in [(4, 2), (0, 2), (2, 0), (-2, 1)] if shape else [(1, 1)]:
        with pytest.raises(ValueError, match=f"block, times: got {block}, {times}, tensor 'w'"):
            tensor(shape).repeat_rows(block, times)
