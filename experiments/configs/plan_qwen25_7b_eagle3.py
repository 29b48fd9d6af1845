"""Plan of Qwen2.5-7B with an EAGLE-3 drafter, on four v5e chips."""

import ml_collections

from experiments.plan_config import default_config

# Source: Qwen/Qwen2.5-7B-Instruct, config.json.
TARGET = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
# Source: sgl-project/SpecForge, configs/qwen2.5-7b-eagle3.json.
DRAFTER = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "draft_vocab_size": 16000,
}


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = TARGET
    config.drafter.family = "eagle3"
    config.drafter.config = DRAFTER
    config.num_draft_tokens = 5  # a chain; the drafter itself has no fixed length
    config.mesh.data = 1
    config.mesh.model = 4
    config.chip = "v5e"
    return config
