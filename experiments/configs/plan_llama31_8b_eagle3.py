"""Plan of Llama-3.1-8B with its EAGLE-3 drafter, on one H100."""

import ml_collections

from experiments.plan_config import default_config

# Source: meta-llama/Llama-3.1-8B-Instruct, config.json.
TARGET = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}
# Source: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, config.json.
DRAFTER = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = TARGET
    config.drafter.family = "eagle3"
    config.drafter.config = DRAFTER
    config.num_draft_tokens = 5  # a chain; the drafter itself has no fixed length
    config.chip = "H100"
    return config
