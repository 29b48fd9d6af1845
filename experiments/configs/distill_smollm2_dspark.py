"""A dspark drafter for SmolLM2-135M-Instruct: one layer and blocks of five.

Run from the repository's root, after `experiments/configs/answers_smollm2.py`; the task sets named
here are excluded by id and by question.
"""

import ml_collections

from experiments.distill_config import default_config

TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca")


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.exclude = tuple(f"../shared/data/{task}.jsonl" for task in TASKS)
    config.directory = "outputs/distill_smollm2_dspark"
    config.drafter.family = "dspark"
    config.drafter.num_draft_tokens = 5
    config.drafter.num_layers = 1
    config.drafter.markov_rank = 64
    config.drafter.mask_id = 6
    return config
