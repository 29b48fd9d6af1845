"""An eagle3 drafter for SmolLM2-135M-Instruct: 8,192 ids, three unrolled steps.

It goes on from the drafter that `distill_smollm2_eagle3_first.py` trains. Run from the repository's
root, after `experiments/configs/answers_smollm2.py`; the task sets named here are excluded by id
and by question.
"""

import ml_collections

from experiments.configs import distill_smollm2_eagle3_first


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = distill_smollm2_eagle3_first.get_config()
    config.start_from = f"{config.directory}/drafter"
    config.directory = "outputs/distill_smollm2_eagle3"
    config.drafter.num_draft_tokens = 3
    config.learns_prompts = False
    config.optimizer.learning_rate = 5e-4
    config.optimizer.num_steps = 900
    config.evaluate_every = 300
    return config
