"""The parts of DSpark's and Medusa's losses, by loops over texts and slots in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from asd_jax import load_target
from asd_jax.load.drafter import target_facts
from asd_jax.models.parameters import unflat_params
from asd_jax.training.batch import Batch
from asd_jax.training.blueprint import DrafterSizes, draw_up
from asd_jax.training.dspark_loss import DsparkWeights, dspark_loss, run_blocks, sample_anchors
from asd_jax.training.medusa_loss import medusa_loss
from asd_jax.training.objective import start_params
from asd_jax.training.train_step import signals_of
from tests import tiny

VOCABULARY = np.arange(0, 60, 3)
SIZES = {
    "dspark": DrafterSizes(
        "dspark", 3, feature_layers=(1,), markov_rank=8, mask_id=59, has_own_head=False
    ),
    "medusa": DrafterSizes("medusa", 3),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_target(str(tiny.write_checkpoint(tmp_path_factory.mktemp("target"))))


def parts(loaded, family, vocabulary):
    """A drafter whose weights are all at work, texts of other lengths, and the target's view."""
    facts = target_facts(loaded)
    blueprint = draw_up(SIZES[family], facts, vocabulary=vocabulary)
    graphdef, params = start_params(blueprint, facts, seed=3, dtype="float32")
    noise = np.random.default_rng(0)
    params = {
        p: x + jnp.asarray(noise.normal(size=x.shape) * 0.2, x.dtype) for p, x in params.items()
    }
    tokens = jnp.asarray(noise.integers(0, 59, (2, 14)), jnp.int32)
    batch = Batch(tokens, jnp.asarray([14, 11], jnp.int32), jnp.asarray([3, 5], jnp.int32))
    layers = SIZES[family].feature_layers or ()
    signals = signals_of(loaded.target, batch, feature_layers=layers)
    return facts, nnx.merge(graphdef, unflat_params(params)), batch, signals


def log_softmax(logits):
    return logits - np.logaddexp.reduce(logits)


def dspark_by_hand(module, batch, signals, anchors, is_real, *, head, ids, embed_tokens):
    """Returns the weighted means of cross-entropy, L1 and the confidence's cross-entropy."""
    hidden = np.asarray(run_blocks(module, batch, signals, anchors, embed_tokens), np.float64)
    hidden = hidden.reshape(hidden.shape[0], *anchors.shape, -1)
    markov = module.markov
    w1 = np.asarray(markov.w1[...], np.float64)
    w2 = np.asarray((markov.reduced_w2 if markov.w2 is None else markov.w2)[...], np.float64)
    confidence = np.asarray(module.confidence.weight[...], np.float64)[0]
    bias = 0.0 if module.confidence.bias is None else float(module.confidence.bias[...][0])
    states, tokens = np.asarray(signals.hidden, np.float64), np.asarray(batch.tokens)
    sums, weight = np.zeros(3), 0.0
    for row, column in np.ndindex(*anchors.shape):
        for slot in range(hidden.shape[-1]):
            place = int(anchors[row, column]) + slot
            if not is_real[row, column] or place + 1 >= int(batch.length[row]):
                continue
            label = np.flatnonzero(ids == tokens[row, place + 1])
            if not label.size:
                continue
            own, before = hidden[:, row, column, slot], w1[tokens[row, place]]
            log_q = log_softmax(head @ own + w2[: len(ids)] @ before)
            distance = np.abs(np.exp(log_q) - np.exp(log_softmax(head @ states[row, place]))).sum()
            sure = confidence @ np.concatenate([own, before])[: confidence.size] + bias
            kept, share = 1 - distance / 2, 1 / (1 + np.exp(-sure))
            bce = -(kept * np.log(share) + (1 - kept) * np.log(1 - share))
            sums += np.exp(-slot / 4) * np.array([-log_q[label[0]], distance, bce])
            weight += np.exp(-slot / 4)
    return sums / weight


@pytest.mark.parametrize("vocabulary", [None, VOCABULARY], ids=["all ids", "some ids"])
def test_dsparks_three_parts(loaded, vocabulary):
    facts, module, batch, signals = parts(loaded, "dspark", vocabulary)
    ids = np.arange(facts.num_ids) if vocabulary is None else vocabulary
    head = np.asarray(facts.lm_head, np.float64)[ids]
    anchors, is_real = sample_anchors(jax.random.key(0), batch, 4)
    expected = dspark_by_hand(
        module, batch, signals, anchors, is_real,
        head=head, ids=ids, embed_tokens=facts.embed_tokens,
    )  # fmt: skip
    for part, weights in zip(expected, np.eye(3), strict=True):
        loss, _ = dspark_loss(
            module, batch, signals, anchors, is_real,
            embed_tokens=facts.embed_tokens,
            lm_head=facts.lm_head if vocabulary is None else facts.lm_head[vocabulary],
            token_ids=None if vocabulary is None else jnp.asarray(vocabulary, jnp.int32),
            loss_weights=DsparkWeights(*map(float, weights)),
        )  # fmt: skip
        assert float(loss) == pytest.approx(part, rel=1e-4)


@pytest.mark.parametrize("vocabulary", [None, VOCABULARY], ids=["all ids", "some ids"])
def test_medusas_heads(loaded, vocabulary):
    """Head k learns the token k + 2 on; labels outside the vocabulary do not count."""
    facts, heads, batch, signals = parts(loaded, "medusa", None)
    ids = np.arange(facts.num_ids) if vocabulary is None else vocabulary
    rows = facts.lm_head[ids]
    hidden = signals.hidden.reshape(-1, signals.hidden.shape[-1]).T
    logits = np.asarray(heads(hidden, rows, len(ids)), np.float64)
    logits = logits.reshape(len(ids), 3, *batch.tokens.shape)
    expected, tokens = 0.0, np.asarray(batch.tokens)
    for head in range(3):
        losses = []
        for row, place in np.ndindex(*tokens.shape):
            at = place + head + 2
            if int(batch.label_start[row]) <= at < int(batch.length[row]):
                label = np.flatnonzero(ids == tokens[row, at])
                if label.size:
                    losses.append(-log_softmax(logits[:, head, row, place])[label[0]])
        assert losses
        expected += 0.8**head * np.mean(losses)
    loss, _ = medusa_loss(
        heads, batch, signals, lm_head=rows, num_ids=facts.num_ids,
        token_ids=None if vocabulary is None else jnp.asarray(vocabulary, jnp.int32),
    )  # fmt: skip
    assert float(loss) == pytest.approx(expected, rel=1e-4)
