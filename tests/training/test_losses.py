"""What the losses compute is what drafting computes, and their gradients are right."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from asd_jax import load_drafter, load_target, sampling_params
from asd_jax.drafters import eagle3_model
from asd_jax.drafters.dspark import run_chain
from asd_jax.training.batch import Batch, Signals, cross_entropy, weighted_mean
from asd_jax.training.dspark_loss import dspark_loss, run_blocks, sample_anchors
from asd_jax.training.eagle3_loss import eagle3_loss
from asd_jax.training.medusa_loss import medusa_loss

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"


@functools.cache
def pair(name):
    target = load_target(str(GOLDEN / name / "target"))
    return target, load_drafter(str(GOLDEN / name / "drafter"), target=target)


@functools.cache
def texts(name, num_tokens=14):
    """Two texts of other lengths, with what the target says of them."""
    target, drafter = pair(name)
    rng = np.random.default_rng(2)
    tokens = jnp.asarray(rng.integers(0, target.target.vocab_size, (2, num_tokens)), jnp.int32)
    output = target.target.forward(
        target.target.params,
        tokens,
        target.target.init_cache(2, num_tokens),
        feature_layers=drafter.feature_layers,
    )
    batch = Batch(tokens, jnp.asarray([num_tokens, 11]), jnp.asarray([3, 5]))
    return batch, Signals(features=output.features, hidden=output.hidden)


def eagle3_parts(name="eagle3_llama_original"):
    target, drafter = pair(name)
    weights, program = drafter.params, drafter.propose.program
    head = target.target.params["lm_head"].get_value()
    return program, weights, dict(
        embed_tokens=weights.embed_tokens,
        head=weights.head,
        target_head=head[weights.token_ids],
        token_ids=weights.token_ids,
    )  # fmt: skip


def test_labels_are_the_tokens_of_the_answer():
    batch = Batch(jnp.asarray([[5, 6, 7, 8, 9]]), jnp.asarray([4]), jnp.asarray([2]))
    assert batch.shifted(2).tolist() == [[7, 8, 9, 0, 0]]
    assert batch.is_label(0).tolist() == [[False, False, True, True, False]]
    assert batch.is_label(2).tolist() == [[True, True, False, False, False]]


def test_cross_entropy_and_weighted_mean_by_hand():
    logits = np.array([[0.0, 2.0], [1.0, 0.0]])
    expected = [np.log(np.exp(0) + np.exp(1)) - 0, np.log(np.exp(2) + 1) - 0]
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits), jnp.asarray([0, 1])), expected)
    assert float(weighted_mean(jnp.asarray([1.0, jnp.nan]), jnp.asarray([2.0, 0.0]))) == 1.0
    assert float(weighted_mean(jnp.asarray([1.0]), jnp.asarray([0.0]))) == 0.0


def test_eagle3_unrolls_what_it_drafts():
    """The loss of slot i after s steps is that of the drafter's own chain on the same tokens."""
    program, weights, tables = eagle3_parts()
    batch, signals = texts("eagle3_llama_original")
    num_steps, anchor_at = 3, 6  # the pair of feature 6 and token 7 is the newest
    core = program.core(weights)
    fused = core.fuse(signals.features).reshape(-1, 2, batch.tokens.shape[1])
    state = pair("eagle3_llama_original")[1].init(weights, 2, 16)
    start = jnp.zeros((2,), jnp.int32)
    before = fused[:, :, :anchor_at].reshape(fused.shape[0], -1)
    cache = eagle3_model.remember_pairs(
        program,
        weights,
        batch.tokens[:, 1 : anchor_at + 1],
        before,
        state.cache.replace(length=start),
    )
    feature, expected = fused[:, :, anchor_at], 0.0
    for step in range(num_steps):
        z, cache = eagle3_model.run_pairs(
            program, weights, batch.tokens[:, anchor_at + 1 + step][:, None], feature, cache,
            start + anchor_at + step,
        )  # fmt: skip
        log_q = jax.nn.log_softmax(eagle3_model.score(program, weights, core.norm(z)), axis=0)
        teacher = tables["target_head"] @ signals.hidden[:, anchor_at + 1 + step].T
        ce = -jnp.sum(jax.nn.softmax(teacher, axis=0) * log_q, axis=0)
        labels = batch.tokens[:, anchor_at + 2 + step]
        counts = jnp.isin(labels, tables["token_ids"]) & (anchor_at + 2 + step < batch.length)
        expected += 0.8**step * float(weighted_mean(ce, counts))
        feature = z
    # Only the labels of that one slot count: the answer is cut to them, one step at a time.
    got = 0.0
    for step in range(num_steps):
        one = batch.replace(
            label_start=jnp.full((2,), anchor_at + 2 + step),
            length=jnp.minimum(batch.length, anchor_at + 3 + step),
        )
        losses = [
            float(eagle3_loss(core, one, signals, num_steps=n, **tables)[0]) if n else 0.0
            for n in (step, step + 1)
        ]
        got += losses[1] - losses[0]
    assert got == pytest.approx(expected, rel=2e-4)


@pytest.mark.slow
def test_dspark_blocks_are_what_it_drafts():
    target, drafter = pair("dspark_qwen3_vanilla")
    batch, signals = texts("dspark_qwen3_vanilla")
    module = nnx.merge(drafter.propose.graphdef, drafter.params.module)
    anchors = jnp.asarray([[5, 9], [6, 4]])
    hidden = run_blocks(module, batch, signals, anchors, None)
    block = module.config.block_size
    hidden = hidden.reshape(-1, 2, 2, block)
    for column in range(2):
        at = anchors[:, column]
        state = drafter.init(drafter.params, 2, 32)
        state = drafter.prefill(
            drafter.params, state, batch.tokens, signals.features, signals.hidden, at
        )
        anchor = jnp.take_along_axis(batch.tokens, at[:, None], axis=1)[:, 0]
        expected, _ = module.run_block(None, anchor, state)
        np.testing.assert_allclose(hidden[:, :, column], expected, atol=1e-4)
        # Along its own drafts the Markov head gives what it gives in a chain.
        chain = run_chain(module, drafter.params, expected, anchor, at, sampling_params(2))
        drafts = chain.tokens.T
        text = jnp.asarray(np.array(batch.tokens))
        for row in range(2):
            span = slice(int(at[row]) + 1, int(at[row]) + 1 + block)
            text = jnp.pad(text, ((0, 0), (0, block)))
            text = text.at[row, span].set(drafts[row])
        forced = batch.replace(
            tokens=text[:, : batch.tokens.shape[1] + block],
            length=at + 1 + block,
        )
        padded = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, block), (0, 0))), signals)
        metrics = dspark_loss(
            module, forced, padded, at[:, None], jnp.ones((2, 1), bool),
            embed_tokens=None, lm_head=None if module.lm_head is None else module.lm_head[...],
        )[1]  # fmt: skip
        np.testing.assert_allclose(metrics["accuracy"], 1.0)


def test_medusa_heads_learn_the_token_they_propose():
    target, drafter = pair("medusa_llama_5heads")
    batch, signals = texts("medusa_llama_5heads")
    heads = nnx.merge(drafter.propose.graphdef, drafter.params.heads)
    vocab = target.target.vocab_size
    total, metrics = medusa_loss(heads, batch, signals, lm_head=None, num_ids=vocab, decay=0.8)
    expected, accuracy = 0.0, []
    for head in range(5):
        terms, hits = [], []
        for row in range(2):
            for t in range(batch.tokens.shape[1]):
                place = t + head + 2
                if not int(batch.label_start[row]) <= place < int(batch.length[row]):
                    continue
                logits = np.asarray(heads(signals.hidden[row, t][:, None], None, vocab))[:, head]
                label = int(batch.tokens[row, place])
                terms.append(np.log(np.exp(logits).sum()) - logits[label])
                hits.append(logits.argmax() == label)
        expected += 0.8**head * np.mean(terms)
        accuracy.append(np.mean(hits))
    assert float(total) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(metrics["accuracy"], accuracy, atol=1e-6)


def numeric_gradient(loss, params, leaf_index, entry, eps=1e-2):
    leaves, treedef = jax.tree.flatten(params)

    def at(delta):
        moved = list(leaves)
        moved[leaf_index] = leaves[leaf_index].at[entry].add(delta)
        return float(loss(jax.tree.unflatten(treedef, moved)))

    return (at(eps) - at(-eps)) / (2 * eps)


def losses(family):
    """Returns the loss as a function of the weights, and the weights."""
    if family == "medusa":
        target, drafter = pair("medusa_llama_5heads")
        batch, signals = texts("medusa_llama_5heads")
        graphdef, params = drafter.propose.graphdef, drafter.params.heads
        vocab = target.target.vocab_size
        return lambda p: medusa_loss(
            nnx.merge(graphdef, p), batch, signals, lm_head=None, num_ids=vocab
        )[0], params
    if family == "eagle3":
        program, weights, tables = eagle3_parts()
        batch, signals = texts("eagle3_llama_original")
        return lambda p: eagle3_loss(
            nnx.merge(program.graphdef, p), batch, signals, num_steps=3, **tables
        )[0], weights.core
    target, drafter = pair("dspark_qwen3_vanilla")
    batch, signals = texts("dspark_qwen3_vanilla")
    anchors, is_real = sample_anchors(jax.random.key(0), batch, 3)
    head = nnx.merge(drafter.propose.graphdef, drafter.params.module).lm_head[...]
    return lambda p: dspark_loss(
        nnx.merge(drafter.propose.graphdef, p), batch, signals, anchors, is_real,
        embed_tokens=None, lm_head=head,
    )[0], drafter.params.module  # fmt: skip


@pytest.mark.parametrize("family", ["medusa", "eagle3", "dspark"])
def test_gradients_equal_numeric_differences(family):
    loss, params = losses(family)
    loss = jax.jit(loss)
    gradient = jax.tree.leaves(jax.jit(jax.grad(loss))(params))
    leaves = jax.tree.leaves(params)
    rng = np.random.default_rng(0)
    checked = 0
    for index, leaf in enumerate(leaves):
        if np.abs(gradient[index]).max() < 1e-3:
            continue
        entry = np.unravel_index(np.abs(gradient[index]).argmax(), leaf.shape)
        other = tuple(int(rng.integers(0, n)) for n in leaf.shape)
        for place in (entry, other):
            numeric = numeric_gradient(loss, params, index, place)
            assert float(gradient[index][place]) == pytest.approx(numeric, rel=0.05, abs=2e-3)
            checked += 1
    assert checked >= 2 * len(leaves) // 2


def test_anchors_lie_in_answers_and_differ():
    batch = Batch(jnp.zeros((2, 12), jnp.int32), jnp.asarray([12, 7]), jnp.asarray([4, 5]))
    anchors, is_real = sample_anchors(jax.random.key(1), batch, 6)
    for row, (start, stop) in enumerate([(4, 11), (5, 6)]):
        real = np.asarray(anchors[row])[np.asarray(is_real[row])]
        assert len(set(real.tolist())) == len(real) == min(6, stop - start)
        assert ((real >= start) & (real < stop)).all()
