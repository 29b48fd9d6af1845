"""A medusa drafter for SmolLM2-135M-Instruct: three heads of one residual block.

Run from the repository's root, after `experiments/configs/answers_smollm2.py`; the task sets named
here are excluded by id and by question.
"""

import ml_collections

from experiments.distill_config import smollm2_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = smollm2_config("medusa")
    config.drafter.num_draft_tokens = 3
    # The loss tells the ids apart that answers are made of; drafting scores all.
    config.drafter.draft_vocab_size = 6144
    config.optimizer.learning_rate = 1e-3
    config.optimizer.num_steps = 500
    config.evaluate_every = 250
    return config
