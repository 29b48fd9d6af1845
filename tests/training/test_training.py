"""A whole training run at toy scale: it learns, it survives kills, it writes what can be loaded."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from asd_jax import (
    Controls,
    DecodeConfig,
    asd,
    decode,
    load_drafter,
    load_target,
    make_mesh,
    make_requests,
    no_drafter,
)
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.load.drafter import target_facts
from asd_jax.training import acceptance, trainer
from asd_jax.training.batch import Batch
from asd_jax.training.blueprint import DrafterSizes, draw_up
from asd_jax.training.export import export
from asd_jax.training.objective import Objective, frozen_tables, start_params
from asd_jax.training.train_step import (
    OptimizerConfig,
    make_optimizer,
    signals_of,
    start,
    train_step,
)
from tests import tiny

SIZES = {
    "medusa": DrafterSizes("medusa", 3),
    "eagle3": DrafterSizes("eagle3", 3, feature_layers=(1, 2)),
    "dspark": DrafterSizes("dspark", 3, feature_layers=(1,), markov_rank=8, mask_id=59),
}
NUM_TEXTS, NUM_TOKENS, PROMPT = 64, 20, 4
families = pytest.mark.parametrize("family", SIZES)


@pytest.fixture(autouse=True)
def promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_target(str(tiny.write_checkpoint(tmp_path_factory.mktemp("target"))))


@functools.cache
def texts_of(path):
    """A target's own greedy answers to random prompts."""
    target = load_target(path).target
    prompts = np.random.default_rng(0).integers(0, 60, (NUM_TEXTS, PROMPT))
    config = DecodeConfig(num_draft_tokens=0, max_new_tokens=NUM_TOKENS - PROMPT, max_len=32)
    requests = make_requests(prompts.tolist(), max_new_tokens=NUM_TOKENS - PROMPT)
    answers = np.asarray(decode(target, no_drafter(), asd(), requests, config).tokens)
    return np.concatenate([prompts, answers], axis=1).astype(np.int32)


class Setup:
    """One family's drafter for the tiny target."""

    def __init__(self, loaded, family, vocabulary=None, **changes):
        self.loaded, self.target = loaded, loaded.target
        self.facts = target_facts(loaded)
        sizes = dataclasses.replace(SIZES[family], **changes)
        self.blueprint = draw_up(sizes, self.facts, vocabulary=vocabulary)
        self.texts = texts_of(str(loaded.source.path))

    def batch_at(self, step, size=16):
        rows = np.random.default_rng([7, step]).permutation(NUM_TEXTS)[:size]
        return Batch(
            jnp.asarray(self.texts[rows]),
            jnp.full((size,), NUM_TOKENS, jnp.int32),
            jnp.full((size,), PROMPT, jnp.int32),
        )

    def evaluate(self, params, graphdef, rows=slice(0, 16)):
        drafter = acceptance.as_drafter(self.blueprint, graphdef, params, self.facts)
        config = DecodeConfig(num_draft_tokens=3, max_new_tokens=NUM_TOKENS - PROMPT, max_len=32)
        requests = make_requests(
            self.texts[rows, :PROMPT].tolist(),
            controls=Controls.strict(),
            max_new_tokens=NUM_TOKENS - PROMPT,
        )
        return acceptance.measure(self.target, drafter, [requests], config)

    def run(self, directory, config, **kwargs):
        return trainer.train(
            self.target, self.facts, self.blueprint, self.batch_at, self.evaluate, config,
            directory, **kwargs,
        )  # fmt: skip


def config_of(steps, **changes):
    changes = dict(evaluate_every=steps, log_every=max(steps // 2, 1), num_anchors=8) | changes
    rate = changes.pop("learning_rate", 1e-2)
    accumulation = changes.pop("accumulation", 1)
    optimizer = OptimizerConfig(
        learning_rate=rate, num_steps=steps // accumulation, accumulation=accumulation
    )
    return trainer.TrainConfig(optimizer, **changes)


@pytest.fixture(scope="module")
def sure(tmp_path_factory):
    """A wider target that is sure of what it writes, so that there is something to overfit."""
    config = tiny.HF_CONFIG | {"hidden_size": 96, "intermediate_size": 192}
    folder = tiny.write_checkpoint(tmp_path_factory.mktemp("target") / "sure", config)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= np.float32(8)
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return load_target(str(folder))


@pytest.mark.slow
@families
def test_a_drafter_learns_the_texts_of_its_target(sure, family, tmp_path):
    setup = Setup(sure, family)
    setup.batch_at = functools.partial(setup.batch_at, size=NUM_TEXTS)
    setup.evaluate = functools.partial(setup.evaluate, rows=slice(0, NUM_TEXTS))
    answers = setup.texts[:, PROMPT:]
    following = {pair for row in answers for pair in itertools.pairwise(row.tolist())}
    assert len(following) > 2 * len(np.unique(answers))  # no token says what comes next
    graphdef, params = start_params(setup.blueprint, setup.facts, seed=0, dtype="float32")
    untrained = setup.evaluate(params, graphdef)
    assert untrained.by_position[0] < 0.5
    events = list(setup.run(tmp_path, config_of(150, log_every=5, num_anchors=15)))
    losses = [event.metrics["loss"] for event in events if isinstance(event, trainer.Progress)]
    assert losses[-1] < losses[0]
    last = events[-1]
    assert isinstance(last, trainer.Evaluated)
    assert last.acceptance.by_position[0] > 0.9
    assert last.acceptance.acceptance_length > untrained.acceptance_length + 1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert lines[-1]["held_out"]["acceptance_length"] == last.acceptance.acceptance_length


@pytest.mark.parametrize(
    ("family", "head"),
    [("medusa", "full"), *itertools.product(("eagle3", "dspark"), ("full", "own", "target's"))],
)
def test_what_is_exported_is_what_was_trained(loaded, family, head, tmp_path):
    vocabulary = None if head == "full" else np.arange(0, 61, 2)
    setup = Setup(loaded, family, vocabulary, has_own_head=head == "own")
    assert ("lm_head.weight" in setup.blueprint.shapes) == (head == "own")
    graphdef, params = start_params(setup.blueprint, setup.facts, seed=3, dtype="float32")
    noise = np.random.default_rng(0)
    params = {  # some weights begin as zeros or ones
        path: jnp.asarray(leaf + noise.normal(size=leaf.shape) * 0.05, jnp.bfloat16).astype(
            jnp.float32
        )
        for path, leaf in params.items()
    }
    export(tmp_path / "drafter", setup.blueprint, params, dtype=ml_dtypes.bfloat16, card="# Card\n")
    read = load_drafter(str(tmp_path / "drafter"), target=loaded, num_draft_tokens=3)
    assert read.name == family
    assert (tmp_path / "drafter" / "README.md").read_text() == "# Card\n"
    trained = acceptance.as_drafter(setup.blueprint, graphdef, params, setup.facts)
    one, other = jax.tree.leaves(trained.params), jax.tree.leaves(read.params)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    # A second export takes the place of the first.
    export(tmp_path / "drafter", setup.blueprint, params, dtype=np.float32, card="new")
    assert (tmp_path / "drafter" / "README.md").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    # Whoever may read one of its files may read all.
    assert len({path.stat().st_mode for path in (tmp_path / "drafter").iterdir()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
@families
def test_as_many_positions_are_trained_as_are_asked_for(loaded, family, count, tmp_path):
    setup = Setup(loaded, family, num_draft_tokens=count)
    setup.evaluate = lambda params, graphdef: acceptance.Acceptance(1.0, (0.0,), 1)
    (progress, _) = setup.run(tmp_path, config_of(1, log_every=1))
    assert len(progress.metrics["accuracy"]) == count


@pytest.mark.slow
@pytest.mark.parametrize("has_own_head", [True, False])
@pytest.mark.parametrize("family", ["eagle3", "dspark"])
def test_a_vocabulary_of_all_tokens_begins_as_none_does(loaded, family, has_own_head):
    """Its own projection begins as the target's rows."""
    losses, shared = [], {}
    for vocabulary in (None, np.arange(61)):
        setup = Setup(loaded, family, vocabulary, has_own_head=has_own_head)
        graphdef, params = start_params(setup.blueprint, setup.facts, seed=3, dtype="float32")
        own = {path: shared.get(path.replace("reduced_w2", "w2"), params[path]) for path in params}
        shared = shared or own
        tables, batch = frozen_tables(setup.blueprint, setup.facts), setup.batch_at(0)
        signals = signals_of(setup.target, batch, feature_layers=SIZES[family].feature_layers)
        objective = Objective(family, graphdef, 61, 3, 8)
        losses.append(float(objective(own, tables, batch, signals, jax.random.key(0))[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def ended(setup, config, directory, *, best=False):
    """Returns the last (or best) state and info that a run has left."""
    _, params = start_params(setup.blueprint, setup.facts, seed=0, dtype="float32")
    checkpoints = trainer.Checkpoints(directory / "checkpoints")
    found = checkpoints.restore(start(params, config.optimizer), best=best)
    checkpoints.close()
    return found


def assert_same_bits(one, other):
    """Weights, optimiser, step and info of two runs are equal."""
    for a, b in zip(*(jax.tree.leaves(state) for state, _ in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one[1] == other[1]


@pytest.mark.parametrize(
    "family", ["medusa", *(pytest.param(f, marks=pytest.mark.slow) for f in ("eagle3", "dspark"))]
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(loaded, family, tmp_path):
    """DSpark draws anchors, and both it and EAGLE-3 read features that are divided."""
    setup = Setup(loaded, family)
    config = config_of(12, evaluate_every=4, accumulation=2)
    width = len(SIZES[family].feature_layers or ()) * setup.facts.lm_head.shape[1]
    scale = np.linspace(0.5, 2.0, width).astype(np.float32) if width else None
    run = functools.partial(setup.run, scale=scale)
    list(run(tmp_path / "whole", config))
    # Stopped behind an evaluation, and once more in the middle of the steps between two.
    for event in run(tmp_path / "parts", config):
        if isinstance(event, trainer.Evaluated) and event.step == 4:
            break
    for event in run(tmp_path / "parts", dataclasses.replace(config, log_every=1)):
        if isinstance(event, trainer.Progress) and event.step == 7:
            break
    list(run(tmp_path / "parts", config))
    whole, parts = (ended(setup, config, tmp_path / name) for name in ("whole", "parts"))
    assert int(whole[0].step) == 12
    assert_same_bits(whole, parts)


def test_a_kill_between_the_best_and_the_last_checkpoint_loses_neither(
    loaded, tmp_path, monkeypatch
):
    """The best one is on the disk first; the step is then done again, and ends as it would have."""
    setup, config = Setup(loaded, "medusa"), config_of(8, evaluate_every=4)
    lengths = iter([1.5, 2.0, 2.0])
    setup.evaluate = lambda params, graphdef: acceptance.Acceptance(next(lengths), (0.0,), 1)
    save = trainer.Checkpoints.save

    def killed(checkpoints, state, info, *, is_best):
        if int(state.step) == 8:
            monkeypatch.setattr(checkpoints._last, "save", lambda *args, **kwargs: 1 / 0)
        save(checkpoints, state, info, is_best=is_best)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Checkpoints, "save", killed)
        with pytest.raises(CheckpointError, match="step 4 is the last"):
            list(setup.run(tmp_path / "parts", config))
    assert int(ended(setup, config, tmp_path / "parts")[0].step) == 4
    list(setup.run(tmp_path / "parts", config))
    lengths = iter([1.5, 2.0])
    list(setup.run(tmp_path / "whole", config))
    for best in (False, True):
        whole, parts = (
            ended(setup, config, tmp_path / name, best=best) for name in ("whole", "parts")
        )
        assert int(whole[0].step) == 8
        assert_same_bits(whole, parts)
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    assert [len(log.splitlines()) for log in logs] == [4, 4]
    assert [json.loads(log.splitlines()[-1])["held_out"]["acceptance_length"] for log in logs] == [
        2.0, 2.0,
    ]  # fmt: skip


def test_accumulated_batches_are_one_step_by_their_mean_gradient(loaded):
    setup = Setup(loaded, "medusa")
    graphdef, params = start_params(setup.blueprint, setup.facts, seed=1, dtype="float32")
    objective = Objective("medusa", graphdef, 61, 0, 0)
    tables, key = frozen_tables(setup.blueprint, setup.facts), jax.random.key(0)
    optimizer = OptimizerConfig(learning_rate=1e-2, num_steps=1, warmup_share=0, accumulation=2)
    state, gradients = start(dict(params), optimizer), []
    for step in range(2):
        batch = setup.batch_at(step, size=8)
        signals = signals_of(setup.target, batch, feature_layers=())
        gradients.append(jax.grad(objective, has_aux=True)(params, tables, batch, signals, key)[0])
        state = jax.tree.map(jnp.copy, state)  # a step takes its state away
        state, _ = train_step(
            state, tables, batch, signals, key, objective=objective, config=optimizer
        )
    chain = make_optimizer(dataclasses.replace(optimizer, accumulation=1))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *gradients)
    updates, _ = chain.update(mean, chain.init(params), params)
    for path, leaf in params.items():
        np.testing.assert_allclose(state.params[path], leaf + updates[path], atol=1e-6)


@pytest.mark.slow
@families
def test_training_in_bfloat16_keeps_the_optimisers_weights_in_float32(loaded, family, tmp_path):
    setup = Setup(loaded, family)
    # So small that bfloat16 weights would not move: their neighbours are 1/256 of them away.
    config = config_of(6, evaluate_every=3, dtype="bfloat16", learning_rate=1e-4)
    events = list(setup.run(tmp_path / "run", config))
    assert all(np.isfinite(e.metrics["loss"]) for e in events if isinstance(e, trainer.Progress))
    _, first = start_params(setup.blueprint, setup.facts, seed=0, dtype="bfloat16")
    best = trainer.best_params(tmp_path / "run", setup.blueprint, setup.facts, config)
    assert {leaf.dtype for leaf in best.values()} == {jnp.dtype("float32")}
    moved = [path for path, leaf in best.items() if np.any(leaf != first[path].astype("float32"))]
    assert moved
    export(tmp_path / "drafter", setup.blueprint, best, dtype=ml_dtypes.bfloat16, card="")
    assert load_drafter(str(tmp_path / "drafter"), target=loaded).name == family


def test_another_configuration_is_not_mixed_in(loaded, tmp_path):
    setup = Setup(loaded, "medusa")
    list(setup.run(tmp_path, config_of(4)))
    with pytest.raises(CheckpointError, match="another configuration: seed differ"):
        list(setup.run(tmp_path, config_of(4, seed=1)))


@pytest.mark.slow
def test_a_damaged_checkpoint_names_the_step_that_is_left(loaded, tmp_path):
    setup = Setup(loaded, "medusa")
    config = config_of(8, evaluate_every=4)
    list(setup.run(tmp_path, config))
    newest = tmp_path / "checkpoints" / "last" / "8"
    for path in newest.rglob("*"):
        if path.is_file() and "ocdbt" in str(path):
            path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"last/8: cannot be restored.*go on from step 4"):
        list(setup.run(tmp_path, config))
    shutil.rmtree(newest)
    events = list(setup.run(tmp_path, config))
    assert events[-1].step == 8


def test_early_stopping(loaded, tmp_path):
    setup = Setup(loaded, "medusa")
    setup.evaluate = lambda params, graphdef: acceptance.Acceptance(1.0, (0.0,), 1)
    events = list(setup.run(tmp_path, config_of(20, evaluate_every=2, patience=2)))
    assert [e.step for e in events if isinstance(e, trainer.Evaluated)] == [2, 4, 6]


def one_step(setup, batch, mesh=None):
    graphdef, params = start_params(setup.blueprint, setup.facts, seed=1, dtype="float32")
    optimizer = OptimizerConfig(learning_rate=1e-2, num_steps=4)
    objective = Objective("eagle3", graphdef, 61, 3, 0)
    state, target, tables = (
        start(params, optimizer), setup.target, frozen_tables(setup.blueprint, setup.facts)
    )  # fmt: skip
    if mesh is not None:
        state, target, tables = trainer._everywhere((state, target, tables), mesh)
        batch = trainer.shard_state(batch, mesh)
    signals = signals_of(target, batch, feature_layers=(1, 2))
    return train_step(
        state, tables, batch, signals, jax.random.key(0), objective=objective, config=optimizer
    )


@pytest.mark.slow
def test_a_mesh_divides_the_texts_and_learns_the_same(loaded):
    setup = Setup(loaded, "eagle3")
    batch = setup.batch_at(0)
    alone, numbers = one_step(setup, batch)
    divided, others = one_step(setup, batch, make_mesh(data=8))
    assert float(numbers["loss"]) == pytest.approx(float(others["loss"]), rel=1e-5)
    for path, leaf in alone.params.items():
        np.testing.assert_allclose(divided.params[path], leaf, atol=2e-4, err_msg=path)


@pytest.mark.slow
def test_a_run_on_a_mesh_is_stopped_and_goes_on(loaded, tmp_path):
    setup, config = Setup(loaded, "eagle3"), config_of(4, evaluate_every=2)
    setup.evaluate = lambda params, graphdef: acceptance.Acceptance(1.5, (0.5,), 1)
    mesh = make_mesh(data=8)
    for event in setup.run(tmp_path / "mesh", config, mesh=mesh):
        if isinstance(event, trainer.Evaluated):
            break
    list(setup.run(tmp_path / "mesh", config, mesh=mesh))
    list(setup.run(tmp_path / "alone", config))
    divided, alone = (ended(setup, config, tmp_path / name)[0] for name in ("mesh", "alone"))
    assert int(divided.step) == int(alone.step) == 4
    for path, leaf in alone.params.items():
        np.testing.assert_allclose(divided.params[path], leaf, atol=2e-3, err_msg=path)


def test_impossible_sizes_are_refused(loaded):
    facts = target_facts(loaded)
    with pytest.raises(ValueError, match="family: got 'lstm'"):
        DrafterSizes("lstm", 3)
    with pytest.raises(ValueError, match="num_draft_tokens: got 0"):
        DrafterSizes("medusa", 0)
    with pytest.raises(ValueError, match="target_layer_ids"):
        draw_up(DrafterSizes("dspark", 3, feature_layers=(1, 9)), facts)
    with pytest.raises(ValueError, match="model: got 2, allowed is 1"):
        trainer._everywhere(jnp.zeros(2), make_mesh(data=4, model=2))
