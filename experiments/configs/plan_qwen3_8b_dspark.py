"""Plan of Qwen3-8B with its DSpark drafter of block 7, on eight v5e chips."""

import ml_collections

from experiments.plan_config import default_config

# Source: Qwen/Qwen3-8B, config.json.
TARGET = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
# Source: deepseek-ai/dspark_qwen3_8b_block7, which has the target's fields but for these.
DRAFTER = TARGET | {
    "num_hidden_layers": 5,
    "block_size": 7,
    "mask_token_id": 151669,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
}


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.target = TARGET
    config.drafter.family = "dspark"
    config.drafter.config = DRAFTER
    config.num_draft_tokens = 7  # the block that it was trained for
    config.mesh.data = 1
    config.mesh.model = 8
    config.chip = "v5e"
    return config
