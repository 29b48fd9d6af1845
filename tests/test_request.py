"""Requests built on the host: nothing wraps around, and no row is made up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import Controls, bucket_length, make_requests, sampling_params
from asd_jax.types import Ledger

MAX = 2**31 - 1
TWO = [[1, 2], [3]]


def rows(requests):
    """Returns every leaf but the prompts by name; keys as their words."""
    leaves = jax.tree_util.tree_leaves_with_path(requests.replace(prompt_tokens=None))
    return {
        jax.tree_util.keystr(path): np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        for path, leaf in leaves
    }


def test_the_largest_numbers_of_int32_are_kept():
    requests = make_requests([[0, MAX - 1]], max_new_tokens=MAX, max_draft_tokens=MAX)
    assert requests.prompt_tokens[0, :2].tolist() == [0, MAX - 1]
    assert requests.max_new_tokens.tolist() == requests.max_draft_tokens.tolist() == [MAX]
    requests = make_requests([[0, 6]], max_new_tokens=1, max_draft_tokens=0, vocab_size=7)
    assert requests.max_draft_tokens.tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            dict(prompts=[[1, 2**32 + 7]]),
            rf"prompts\[0\]: got id 4294967303, allowed is 0..{MAX - 1}",
        ),
        (dict(prompts=[[1], [2**31]]), r"prompts\[1\]: got id 2147483648, allowed is"),
        (dict(prompts=[[1, 2**63]]), r"prompts\[0\]: allowed are token ids, whole .* got float64"),
        (dict(prompts=[[1, 2**64]]), r"prompts\[0\]: allowed are token ids, whole .* got object"),
        (dict(prompts=[[1, -1]], vocab_size=9), r"prompts\[0\]: allowed are .* in 0..8, got -1"),
        (dict(prompts=[[True, False]]), r"prompts\[0\]: allowed are token ids"),
        (dict(prompts=[["a"]]), r"prompts\[0\]: allowed are token ids"),
        (dict(prompts=["abc"]), r"prompts\[0\]: got 'abc', allowed is a list of token ids"),
        (dict(prompts=[1, 2]), r"prompts\[0\]: got 1, allowed is a list of token ids"),
        (dict(prompts=[[[1], [2]]]), r"prompts\[0\]: got .*, allowed is a list of token ids"),
        (dict(prompts=[[1, [2]]]), r"prompts\[0\]: got .*, allowed is a list of token ids"),
        (dict(prompts=[[1], []]), r"prompts\[1\]: got 0 tokens, allowed is 1.."),
        (dict(prompts=[]), "prompts: got 0, allowed is at least one$"),
        (dict(prompts="abc"), "prompts: got 'abc', allowed is a list of lists"),
        (dict(prompts=3), "prompts: got 3, allowed is a list of lists"),
        (dict(batch=2.0), "batch: got 2.0, allowed is a whole number in 1.."),
        (dict(batch=True), "batch: got True, allowed is a whole number in 1.."),
        (dict(batch=0), "batch: got 0, allowed is a whole number in 1.."),
        (dict(batch=1), "prompts: got 2 for a batch of 1, allowed is 1..1"),
        (dict(padded_length=4.0), "padded_length: got 4.0, allowed is a whole number in 1.."),
        (dict(padded_length=2**32), "padded_length: got 4294967296, allowed is a whole number in"),
        (dict(padded_length=1), r"prompts\[0\]: got 2 tokens, allowed is 1..1"),
        (dict(vocab_size="9"), "vocab_size: got '9', allowed is a whole number in 1.."),
        (dict(vocab_size=0), "vocab_size: got 0, allowed is a whole number in 1.."),
        (dict(max_new_tokens=2**32 + 5), f"max_new_tokens: got 4294967301, allowed is .* 1..{MAX}"),
        (dict(max_new_tokens=2**32), "max_new_tokens: got 4294967296, allowed is"),
        (dict(max_new_tokens=[4, 2**31]), r"max_new_tokens: got \[4, 2147483648\], allowed is"),
        (dict(max_new_tokens=True), "max_new_tokens: got True, allowed is"),
        (dict(max_new_tokens=[4, 0]), r"max_new_tokens: got \[4, 0\], allowed is"),
        (dict(max_draft_tokens=2**31), f"max_draft_tokens: got 2147483648, allowed .* 0..{MAX}"),
    ],
)
def test_impossible_arguments_are_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_requests(**{"prompts": TWO, "max_new_tokens": 4, **arguments})


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("sampling_params.temperature", lambda n: sampling_params(n, temperature=1.0)),
        ("ledger.spent", lambda n: Ledger.zeros((n,))),
        ("controls.budget", lambda n: Controls(budget=np.ones(n))),
        ("controls.gate", lambda n: Controls(gate=jnp.ones(n))),
        ("controls.block_cap", lambda n: Controls(block_cap=np.ones(n, int))),
        ("max_new_tokens", lambda n: list(range(1, n + 1))),
        ("max_draft_tokens", lambda n: np.ones((n,), np.int32)),
    ],
)
def test_values_that_are_not_one_for_each_prompt_are_refused(field, make, count):
    name = field.split(".")[0]
    with pytest.raises(ValueError, match=f"{field}: got .*, allowed .*(for each|\\[2\\])"):
        make_requests(TWO, **{"max_new_tokens": 4, "batch": 4, name: make(count)})


def test_a_ledger_or_sampling_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"ledger.spent: got shape \[\], allowed is \[2\]"):
        make_requests(TWO, max_new_tokens=4, ledger=Ledger.zeros())
    params = jax.tree.map(lambda leaf: leaf[0], sampling_params(2))
    with pytest.raises(ValueError, match=r"sampling_params.temperature: got shape \[\]"):
        make_requests(TWO, max_new_tokens=4, sampling_params=params)
    short_key = sampling_params(2).replace(key=sampling_params(1).key)
    with pytest.raises(ValueError, match=r"sampling_params.key: got shape \[1\], allowed is \[2\]"):
        make_requests(TWO, max_new_tokens=4, sampling_params=short_key)


@pytest.mark.parametrize("name", ["controls", "sampling_params", "ledger"])
@pytest.mark.parametrize("value", [0, {}, "greedy"])
def test_another_type_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: got {value!r}, allowed is a "):
        make_requests(TWO, max_new_tokens=4, **{name: value})


def test_padding_rows_change_no_row_of_a_prompt():
    arguments = dict(
        controls=Controls(budget=np.array([1.0, 2.0]), gate=0.5, block_cap=np.array([3, 4])),
        sampling_params=sampling_params(2, temperature=[0.5, 1.0], top_p=[0.9, 0.8], seed=[5, 6]),
        max_new_tokens=[7, 8],
        max_draft_tokens=np.array([1, 2]),
        ledger=Ledger.zeros((2,)).replace(spent=jnp.asarray([0.25, 0.75])),
    )
    alone, padded = (rows(make_requests(TWO, batch=n, **arguments)) for n in (2, np.int64(5)))
    for name, leaf in alone.items():
        np.testing.assert_array_equal(padded[name][:2], leaf, name)
        assert len(padded[name]) == 5, name
    assert alone[".ledger.spent"].tolist() == [0.25, 0.75]
    assert padded[".max_new_tokens"].tolist() == [7, 8, 0, 0, 0]


def test_prompts_may_be_an_array():
    for prompts in (np.array([[1, 2], [3, 4]], np.int64), jnp.array([[1, 2], [3, 4]])):
        requests = make_requests(prompts, max_new_tokens=4, padded_length=2)
        assert requests.prompt_tokens.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(length=float("inf")), "length: got inf, allowed is a whole number in 0.."),
        (dict(length=2**40), "length: got 1099511627776, allowed is"),
        (dict(length=9, smallest=1), "smallest: got 1, allowed is a whole number in 2.."),
        (dict(length=9, smallest=0), "smallest: got 0, allowed is"),
    ],
)
def test_an_impossible_bucket_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        bucket_length(**arguments)
    assert bucket_length(9, smallest=2) == 12
