"""A dspark drafter for SmolLM2-135M-Instruct: two layers, blocks of three, 8,192 ids.

Run from the repository's root, after `experiments/configs/answers_smollm2.py`; the task sets named
here are excluded by id and by question. For a target of this size the output projection costs more
than the layer, so the drafter scores the ids that answers are made of; see
`benchmarks/drafter_choices.py` for the price of each choice.
"""

import ml_collections

from experiments.distill_config import smollm2_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = smollm2_config("dspark")
    config.drafter.num_draft_tokens = 3
    config.drafter.num_layers = 2
    config.drafter.markov_rank = 64
    config.drafter.mask_id = 6
    config.drafter.draft_vocab_size = 8192
    config.drafter.has_own_head = False
    # Cross-entropy moves a drafter that knows nothing; the distance alone hardly does.
    config.dspark_weights.cross_entropy = 1.0
    config.dspark_weights.l1 = 1.0
    config.dspark_weights.confidence = 0.3
    config.num_anchors = 40
    config.optimizer.learning_rate = 1e-3
    config.optimizer.num_steps = 900
    config.evaluate_every = 450
    return config
