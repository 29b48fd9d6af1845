"""An eagle3 drafter for SmolLM2-135M-Instruct: 8,192 ids, three unrolled steps.

It goes on from the drafter that `distill_smollm2_eagle3_first.py` trains. Run from the repository's
root, after `experiments/configs/answers_smollm2.py`; the task sets named here are excluded by id
and by question.
"""

import ml_collections

from experiments.distill_config import smollm2_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = smollm2_config("eagle3")
    config.drafter.num_draft_tokens = 3
    config.drafter.draft_vocab_size = 8192
    config.drafter.has_own_head = False
    config.batch_size = 4
    config.optimizer.learning_rate = 4e-4
    config.optimizer.num_steps = 600
    config.evaluate_every = 300
    config.evaluate_tokens = 64
    config.start_from = "outputs/distill_smollm2_eagle3_first/drafter"
    return config
