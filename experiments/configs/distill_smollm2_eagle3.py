"""A eagle3 drafter for SmolLM2-135M-Instruct: four unrolled steps and a draft vocabulary of 8192.

Run from the repository's root, after `experiments/configs/answers_smollm2.py`; the task sets named
here are excluded by id and by question.
"""

import ml_collections

from experiments.distill_config import TASK_SETS, default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.exclude = TASK_SETS
    config.directory = "outputs/distill_smollm2_eagle3"
    config.drafter.family = "eagle3"
    config.drafter.num_draft_tokens = 4
    config.drafter.draft_vocab_size = 8192
    return config
