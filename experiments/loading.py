"""From a run's configuration to what decodes: target, drafter, arms and settings."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from asd_jax.evaluation.arms import Arm, make_arms
from asd_jax.evaluation.corpus import read_corpus
from asd_jax.evaluation.plan import Settings
from asd_jax.evaluation.records import OutputError
from asd_jax.load import LoadedTarget, load_drafter, load_target
from asd_jax.types import AcceptanceRule, Controls, Drafter
from experiments import config as configs
from experiments.config import RunConfig
from experiments.display import Display
from experiments.fields import ConfigError


@contextlib.contextmanager
def told_as_config_error() -> Iterator[None]:
    """Files that cannot be used are the user's to mend: a message instead of a traceback."""
    try:
        yield
    except (ConfigError, OutputError):
        raise
    except (ValueError, OSError, ImportError) as error:
        raise ConfigError(str(error)) from error


def load(config: RunConfig, mesh: Mesh | None, display: Display) -> LoadedTarget:
    """Loads the target, shows how far it is, and returns when the weights are on the device."""
    start = time.perf_counter()
    loaded = load_target(
        config.target,
        dtype=None if config.dtype == "auto" else config.dtype,
        mesh=mesh,
        on_progress=display.loading,
    )
    jax.block_until_ready(loaded.target.params)
    leaves = jax.tree.leaves(loaded.target.params)
    size = sum(leaf.size for leaf in leaves) / 1e6
    device = jax.devices()[0].device_kind
    if mesh is not None:
        device = f"{' x '.join(str(size) for size in mesh.shape.values())} x {device}"
    display.loaded(
        f"{config.target}: {size:,.1f} M parameters, {leaves[0].dtype}, on {device}",
        time.perf_counter() - start,
    )
    return loaded


def drafter_of(config: RunConfig, loaded: LoadedTarget, display: Display) -> Drafter:
    """Loads the drafter for a target."""
    start = time.perf_counter()
    corpus = config.drafter_options.corpus
    drafter = load_drafter(
        config.drafter,
        target=loaded,
        corpus=corpus and read_corpus(corpus, loaded.source.digest()),
        with_logits=_rule(config).reads_draft_logits,
        **drafter_options(config),
    )
    if drafter.num_params:
        display.line(
            "drafter",
            f"{config.drafter}: {drafter.name}, {drafter.num_params / 1e6:,.1f} M parameters, "
            f"{drafter.num_draft_tokens} tokens a round, loaded in "
            f"{time.perf_counter() - start:.1f} s",
        )
    return drafter


def drafter_options(config: RunConfig) -> dict[str, Any]:
    """Returns the options of `load_drafter` and `check_drafter`, the corpus aside."""
    options = dataclasses.asdict(config.drafter_options)
    del options["corpus"]  # a file, which is read when the target is there
    return {"num_draft_tokens": config.num_draft_tokens, **options}


def _rule(config: RunConfig) -> AcceptanceRule:
    verifier = config.verifier
    return configs.make_rule(verifier.rule, verifier.value_scheme, verifier.options)


def arms_of(config: RunConfig, drafter: Drafter) -> tuple[Arm, ...]:
    """Returns the ways of decoding that the run compares."""
    num_draft_tokens = config.num_draft_tokens or drafter.num_draft_tokens or 0
    return make_arms(
        config.arms, drafter=drafter, rule=_rule(config), num_draft_tokens=num_draft_tokens
    )


def settings_of(config: RunConfig) -> Settings:
    """Returns what all arms have in common."""
    verifier = config.verifier
    return Settings(
        controls=Controls(verifier.budget, verifier.gate, verifier.block_cap),
        max_new_tokens=config.max_new_tokens,
        batch_size=config.batch_size,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed,
        ignore_eos=config.ignore_eos,
        protect_stop_ids=verifier.protect_stop_ids,
        trace=config.trace,
        thinking=config.thinking,
    )


def use_compilation_cache(config: RunConfig, display: Display) -> None:
    """Has JAX keep compiled programs; goes on without where it cannot."""
    choice = config.compilation_cache
    if choice == "off":
        return
    if choice == "auto":
        choice = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/asd_jax/xla"
    folder = Path(choice)
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:
        display.problem(f"compilation_cache: {folder}: {error}; going on without it")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
