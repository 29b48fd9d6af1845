"""The decode loop compiled for shapes: what it takes beside weights and state, and exchanges.

Nothing is allocated: weights, requests and state are shapes, and the programs are compiled for as
many host devices as the mesh has, never run.

XLA's CPU backend has no bfloat16 products. In a bfloat16 program it widens every weight to float32
and moves those copies out of the loop, where they would be counted as temporaries: twice the
weights (a trial: four layers of Qwen3-8B, 0.50 GB of weights a device, took 1.18 GB of temporaries
a round in bfloat16 and 0.18 GB in float32). TPUs and GPUs need none of them. Temporaries are
therefore those of the same program in float32, where nothing is widened. Many are float32 in any
case (scores of the attention, noise, statistics) and the others are half as large in bfloat16, so
for bfloat16 the figure is an upper bound of what this compiler would take, by at most a factor of
two. Another backend fuses and pads differently; the report's headroom is for that.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asd_jax import sharding
from asd_jax.acceptance import asd
from asd_jax.decode import DecodeConfig, DecodeState, Requests, make_requests, prefill, run_rounds
from asd_jax.types import Drafter, PyTree, Target

# Code generation takes most of the time of compiling and has no part in what is measured.
_COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is decoded.

    Attributes:
      batch_size: Requests on the whole mesh, a multiple of its data axis.
      prompt_length: P, tokens of a padded prompt.
      max_new_tokens: Tokens of an answer.
      num_draft_tokens: G.
      prefill_chunk: Prompt tokens of a row in one forward of the prefill.
    """

    batch_size: int
    prompt_length: int
    max_new_tokens: int
    num_draft_tokens: int
    prefill_chunk: int = 256

    @property
    def decode_config(self) -> DecodeConfig:
        """The loop's static sizes."""
        return DecodeConfig(
            num_draft_tokens=self.num_draft_tokens,
            max_new_tokens=self.max_new_tokens,
            max_len=self.prompt_length + self.max_new_tokens,
            stop_ids=(0,),
            prefill_chunk=self.prefill_chunk,
        )


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """What one compiled program takes on each device, in bytes.

    Attributes:
      arguments: Weights, requests and, for the rounds, the state.
      outputs: The state behind it.
      aliased: Of the outputs, those that take an argument's place.
      temporaries: The rest, at its largest.
      compile_seconds: Time that compiling took.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    compile_seconds: float


def abstract_requests(workload: Workload, mesh: Mesh) -> Requests:
    """Returns a batch of requests as shapes, divided along the mesh's data axis."""
    requests = jax.eval_shape(
        lambda: make_requests(
            [[0]] * workload.batch_size,
            max_new_tokens=workload.max_new_tokens,
            padded_length=workload.prompt_length,
        )
    )
    return _on_mesh(requests, mesh)


def abstract_state(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    """Returns the loop's carry behind the prefill as shapes."""
    assert target.partition is not None
    state = jax.eval_shape(functools.partial(prefill, config=config), target, drafter, requests)
    return _on_mesh(state, target.partition.mesh)


def _on_mesh(tree: PyTree, mesh: Mesh) -> PyTree:
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)
        ),
        tree,
        sharding.state_specs(tree),
    )


def abstract_logits(target: Target, state: DecodeState, num_tokens: int) -> jax.ShapeDtypeStruct:
    """Returns the logits of one round's forward as a shape, [B, T, V], on the target's mesh.

    Args:
      target: Of shapes.
      state: From `abstract_state`.
      num_tokens: T = G + 1.
    """
    assert target.partition is not None
    mesh = target.partition.mesh
    batch = state.anchor.shape[0]
    tokens = _on_mesh(jax.ShapeDtypeStruct((batch, num_tokens), jnp.int32), mesh)
    spec = PartitionSpec(sharding.DATA, None, sharding.MODEL)
    forward = jax.shard_map(
        lambda target, tokens, cache: target.forward(target.params, tokens, cache).logits,
        mesh=mesh,
        in_specs=(
            sharding.params_specs_tree(target, target.partition),
            sharding.BATCH,
            sharding.state_specs(state.cache),
        ),
        out_specs=spec,
        check_vma=False,
    )
    logits = jax.eval_shape(forward, target, tokens, state.cache)
    return jax.ShapeDtypeStruct(logits.shape, logits.dtype, sharding=NamedSharding(mesh, spec))


def compile_prefill(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> ProgramMemory:
    """Compiles the prefill for shapes."""
    program = jax.jit(prefill, static_argnames=("config",))
    return _compile(lambda: program.lower(target, drafter, requests, config))[1]


def compile_rounds(
    target: Target,
    drafter: Drafter,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
) -> tuple[str, ProgramMemory]:
    """Compiles the loop of rounds for shapes; returns its optimised HLO and what it takes."""
    # The state is donated anew: a jit around a jit would forget that.
    program = jax.jit(run_rounds, static_argnames=("rule", "config"), donate_argnames=("state",))
    num_rounds = jax.ShapeDtypeStruct((), jnp.int32)
    return _compile(
        lambda: program.lower(target, drafter, asd(), requests, config, state, num_rounds)
    )


def _compile(lower: Callable[[], Any]) -> tuple[str, ProgramMemory]:
    start = time.perf_counter()
    compiled = lower().compile(_COMPILER_OPTIONS)
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return compiled.as_text(), ProgramMemory(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        compile_seconds=seconds,
    )
