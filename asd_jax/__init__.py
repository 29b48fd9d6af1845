"""Approximate Speculative Decoding in JAX: the verifier, the ledger and the loop around them.

Start at `asd_jax.verifier` for the algorithm and `asd_jax.decode` for the loop.
"""

from asd_jax.acceptance import RULES, asd, strict
from asd_jax.decode import (
    DecodeConfig,
    DecodeResult,
    Requests,
    bucket_length,
    decode,
    make_requests,
    stream,
)
from asd_jax.drafters.ngram import ngram
from asd_jax.drafters.none import no_drafter
from asd_jax.load import LoadedTarget, load_drafter, load_target, save_target
from asd_jax.sampling import SamplingParams, sampling_params
from asd_jax.sharding import make_mesh
from asd_jax.types import (
    AcceptanceRule,
    Block,
    Controls,
    Drafter,
    FinishReason,
    Ledger,
    Proposal,
    StopReason,
    Target,
    TargetOutput,
    Verdict,
)
from asd_jax.verifier import settle, verify, verify_batch

__all__ = [
    "RULES",
    "AcceptanceRule",
    "Block",
    "Controls",
    "DecodeConfig",
    "DecodeResult",
    "Drafter",
    "FinishReason",
    "Ledger",
    "LoadedTarget",
    "Proposal",
    "Requests",
    "SamplingParams",
    "StopReason",
    "Target",
    "TargetOutput",
    "Verdict",
    "asd",
    "bucket_length",
    "decode",
    "load_drafter",
    "load_target",
    "make_mesh",
    "make_requests",
    "ngram",
    "no_drafter",
    "sampling_params",
    "save_target",
    "settle",
    "stream",
    "strict",
    "verify",
    "verify_batch",
]
