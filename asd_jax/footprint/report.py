"""Adds up what a target and a drafter need on each device of a mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from asd_jax import sharding
from asd_jax.footprint import collectives, program, weights
from asd_jax.footprint.chips import Chip
from asd_jax.footprint.collectives import Collective
from asd_jax.footprint.drafter import abstract_drafter
from asd_jax.footprint.program import ProgramMemory, Workload
from asd_jax.load import Layout, target_layout
from asd_jax.models.transformer import TransformerConfig
from asd_jax.request import Requests
from asd_jax.state import DecodeState
from asd_jax.types import Drafter, Target

# Of a chip's memory: for the runtime and fragmentation.
DEFAULT_HEADROOM = 0.1
_HLO_NAMES = {"float32": "f32", "bfloat16": "bf16"}
NOT_INCLUDED = ("the runtime's own memory and fragmentation: that is what the headroom is for",)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes on each device, unless said otherwise. All devices hold the same.

    Attributes:
      data: Devices that divide the requests.
      model: Devices that divide the weights.
      dtype: Of weights, caches and activations.
      workload: What is decoded.
      feature_layers: Residual streams that the drafter reads, as hidden_states indices.
      num_slots: Cache slots of a request.
      target_parameters: As the checkpoint has them, on no device in particular.
      drafter_parameters: Likewise, those shared with the target not counted.
      target_weights: With padding and copied key/value heads.
      drafter_weights: Likewise, but for what it shares with the target.
      target_cache: Keys, values and lengths.
      drafter_state: Its cache, and whatever else it keeps from round to round.
      requests_and_results: Prompts, limits, ledgers, counters and answers.
      logits: Of one round; part of its temporaries.
      prefill: The compiled prefill, in float32 (see `asd_jax.footprint.program`); None: not
        compiled.
      rounds: The compiled loop, likewise.
      greedy_exchanges: What the devices exchange in a round of greedy requests.
      sampled_exchanges: The same where some request samples.
    """

    data: int
    model: int
    dtype: str
    workload: Workload
    feature_layers: tuple[int, ...]
    num_slots: int
    target_parameters: int
    drafter_parameters: int
    target_weights: int
    drafter_weights: int
    target_cache: int
    drafter_state: int
    requests_and_results: int
    logits: int
    prefill: ProgramMemory | None = None
    rounds: ProgramMemory | None = None
    greedy_exchanges: tuple[Collective, ...] | None = None
    sampled_exchanges: tuple[Collective, ...] | None = None

    @property
    def resident(self) -> int:
        """Bytes that stay from the prefill to the end."""
        return (
            self.target_weights
            + self.drafter_weights
            + self.target_cache
            + self.drafter_state
            + self.requests_and_results
        )

    @property
    def is_compiled(self) -> bool:
        """Whether the temporaries are known."""
        return self.prefill is not None and self.rounds is not None

    @property
    def temporaries(self) -> int:
        """Bytes that come and go, at their largest; not compiled: the logits alone."""
        if self.prefill is None or self.rounds is None:
            return self.logits
        beside_the_state = self.rounds.outputs - self.rounds.aliased
        return max(self.prefill.temporaries, self.rounds.temporaries + beside_the_state)

    @property
    def peak(self) -> int:
        """Most bytes at any moment; a lower bound where nothing was compiled."""
        return self.resident + self.temporaries

    def fits(self, chip: Chip, headroom: float = DEFAULT_HEADROOM) -> bool:
        """Returns whether a chip has room.

        Args:
          chip: One of `CHIPS`.
          headroom: Part of its memory to leave free, 0..1.
        """
        return self.peak <= chip.memory * (1 - headroom)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything for JSON, with the sums."""
        return {
            **dataclasses.asdict(self),
            "greedy_exchanges": _exchange_rows(self.greedy_exchanges),
            "sampled_exchanges": _exchange_rows(self.sampled_exchanges),
            "resident": self.resident,
            "temporaries": self.temporaries,
            "peak": self.peak,
            "is_compiled": self.is_compiled,
            "not_included": list(NOT_INCLUDED),
        }


def _exchange_rows(exchanges: tuple[Collective, ...] | None) -> list[dict[str, Any]] | None:
    if exchanges is None:
        return None
    return [{**each._asdict(), "bytes": each.bytes} for each in exchanges]


def measure(
    target_config: Mapping[str, Any],
    drafter: str,
    drafter_config: Mapping[str, Any],
    workload: Workload,
    mesh: Mesh,
    *,
    dtype: str = "bfloat16",
    is_compiled: bool = True,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Footprint:
    """Finds what a target with a drafter needs on each device, without allocating it.

    Args:
      target_config: Fields of the target's Hugging Face `config.json`.
      drafter: One of `asd_jax.footprint.DRAFTERS`.
      drafter_config: Fields of the drafter's own `config.json`.
      workload: What is decoded.
      mesh: Of host devices, as many as accelerators are meant.
      dtype: "bfloat16" or "float32", of weights, caches and activations.
      is_compiled: Whether to compile, for temporaries and exchanges.
      on_progress: Told what comes next.

    Raises:
      ValueError: Configs that are not implemented, or sizes that do not fit each other.
    """
    config = weights.read_target(target_config)
    _check_fit(config, workload, mesh)
    on_progress("shapes")
    make = functools.partial(_Parts.of, config, drafter, drafter_config, workload, mesh)
    parts = make(dtype)
    footprint = _of_shapes(parts, workload, mesh, dtype)
    if not is_compiled:
        return footprint

    loop = workload.decode_config
    wide = parts if dtype == "float32" else make("float32")
    on_progress("lowering and compiling the prefill, float32")
    prefill = program.compile_prefill(wide.target, wide.drafter, wide.requests, loop)
    on_progress("lowering and compiling the rounds, float32")
    text, rounds = program.compile_rounds(
        wide.target, wide.drafter, wide.requests, loop, wide.state
    )
    if mesh.size > 1 and (dtype != "float32" or parts.drafter.can_abstain):
        on_progress(f"lowering and compiling the rounds, {dtype}, for what is exchanged")
        # Of a drafter that can abstain a round with drafts, the dearer one: which of the two
        # forwards a round runs is known to the device alone.
        busy = parts.drafter.replace(can_abstain=False)
        text, _ = program.compile_rounds(parts.target, busy, parts.requests, loop, parts.state)
    greedy, sampled = (
        collectives.in_round(text, is_sampled=is_sampled, promoted_dtype=_HLO_NAMES[dtype])
        for is_sampled in (False, True)
    )
    return dataclasses.replace(
        footprint,
        prefill=prefill,
        rounds=rounds,
        greedy_exchanges=greedy,
        sampled_exchanges=sampled,
    )


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What the loop is compiled for, as shapes."""

    layout: Layout
    target: Target
    drafter: Drafter
    requests: Requests
    state: DecodeState

    @classmethod
    def of(
        cls,
        config: TransformerConfig,
        drafter_name: str,
        drafter_config: Mapping[str, Any],
        workload: Workload,
        mesh: Mesh,
        dtype: str,
    ) -> _Parts:
        kind = jnp.dtype(dtype)
        layout = target_layout(config, kind, mesh)
        target = weights.abstract_target(layout)
        drafter = abstract_drafter(
            drafter_name,
            drafter_config,
            target,
            config,
            num_draft_tokens=workload.num_draft_tokens,
            dtype=kind,
        )
        requests = program.abstract_requests(workload, mesh)
        state = program.abstract_state(target, drafter, requests, workload.decode_config)
        return cls(layout, target, drafter, requests, state)


def _check_fit(config: TransformerConfig, workload: Workload, mesh: Mesh) -> None:
    """Raises a ValueError where sizes cannot work together."""
    data = mesh.shape[sharding.DATA]
    max_len = workload.decode_config.max_len
    if max_len > config.max_position:
        raise ValueError(
            f"prompt_length + max_new_tokens: got {max_len}, allowed is <= the target's context of "
            f"{config.max_position} tokens"
        )
    if workload.batch_size % data:
        raise ValueError(
            f"batch_size: got {workload.batch_size}, allowed is a multiple of {data}, the mesh's "
            "data axis"
        )


def _of_shapes(parts: _Parts, workload: Workload, mesh: Mesh, dtype: str) -> Footprint:
    """Returns all that needs no compiler."""
    size = weights.bytes_per_device
    target_cache, drafter_state = size(parts.state.cache), size(parts.state.drafter_state)
    logits = program.abstract_logits(parts.target, parts.state, workload.num_draft_tokens + 1)
    of_target = {id(leaf) for leaf in jax.tree.leaves(parts.target.params)}
    own = [leaf for leaf in jax.tree.leaves(parts.drafter.params) if id(leaf) not in of_target]
    return Footprint(
        data=mesh.shape[sharding.DATA],
        model=mesh.shape[sharding.MODEL],
        dtype=dtype,
        workload=workload,
        feature_layers=parts.drafter.feature_layers,
        num_slots=parts.state.cache.keys[0].shape[2],
        target_parameters=weights.num_parameters(parts.layout),
        drafter_parameters=parts.drafter.num_params,
        target_weights=size(parts.target.params),
        drafter_weights=size(own),
        target_cache=target_cache,
        drafter_state=drafter_state,
        requests_and_results=(
            size(parts.requests) + size(parts.state) - target_cache - drafter_state
        ),
        logits=size(logits),
    )
