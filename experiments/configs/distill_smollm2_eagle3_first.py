"""The first stage of `distill_smollm2_eagle3.py`: one unrolled step, at half the price of three."""

import ml_collections

from experiments.distill_config import smollm2_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = smollm2_config("eagle3")
    config.directory = "outputs/distill_smollm2_eagle3_first"
    config.drafter.num_draft_tokens = 1
    config.drafter.draft_vocab_size = 8192
    config.drafter.has_own_head = False
    config.batch_size = 4
    config.optimizer.learning_rate = 3e-4
    config.optimizer.num_steps = 1200
    config.evaluate_every = 600
    config.evaluate_tokens = 64
    config.start_from = "linear"
    # Twice as many tokens to learn; the last stage learns answers alone, as it will draft those.
    config.learns_prompts = True
    return config
