"""SmolLM2-135M-Instruct with the EAGLE-3 drafter that was distilled for it, on any laptop.

Eight prompts of every kind but the long one take about two minutes on two CPU cores, compilation
not counted; the first table comes after the first prompt. `--config.limit=0` takes all prompts.
"""

import ml_collections

from experiments.configs import smollm2_ngram


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = smollm2_ngram.get_config()
    config.drafter = "drafters/smollm2_135m_eagle3"
    config.num_draft_tokens = 3
    return config
