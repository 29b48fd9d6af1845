"""Plan of Llama-3.1-8B with four Medusa heads, on one A100."""

import ml_collections

from experiments.configs.plan_llama31_8b_eagle3 import TARGET
from experiments.plan_config import default_config

# Four heads with output projections of their own, as the released heads for this target have.
DRAFTER = {
    "hidden_size": 4096,
    "vocab_size": 128256,
    "medusa_num_heads": 4,
    "medusa_num_layers": 1,
}


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = TARGET
    config.drafter.family = "medusa"
    config.drafter.config = DRAFTER
    config.num_draft_tokens = 4  # one a head
    config.chip = "A100"
    return config
