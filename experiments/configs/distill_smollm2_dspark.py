"""A dspark drafter for SmolLM2-135M-Instruct: one layer and blocks of five.

Run from the repository's root, after `experiments/configs/answers_smollm2.py`; the task sets named
here are excluded by id and by question.
"""

import ml_collections

from experiments.distill_config import TASK_SETS, default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.exclude = TASK_SETS
    config.directory = "outputs/distill_smollm2_dspark"
    config.drafter.family = "dspark"
    config.drafter.num_draft_tokens = 5
    config.drafter.num_layers = 1
    config.drafter.markov_rank = 64
    config.drafter.mask_id = 6
    return config
