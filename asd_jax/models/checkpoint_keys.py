"""Names of a dense decoder's tensors in Hugging Face checkpoints, and where they go.

One table serves Llama, Mistral, Qwen2 and Qwen3: which of the names exist follows from the config.
"""

from __future__ import annotations

# Checkpoint names (regex) -> parameter paths of `asd_jax.models.transformer.Transformer`.
KEY_RULES: tuple[tuple[str, str], ...] = (
    (r"model\.embed_tokens\.weight", "embed_tokens"),
    (r"model\.norm\.weight", "norm/weight"),
    (r"lm_head\.weight", "lm_head"),
    (r"model\.layers\.(\d+)\.(\w+layernorm)\.weight", r"layers/\1/\2/weight"),
    (r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.(weight|bias)", r"layers/\1/\2/\3/\4"),
)

# Buffers that old exporters wrote, which follow from the config; and the heads of a Medusa-2
# repository, which are a drafter's.
IGNORED_KEYS: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq", r"medusa_head\..*")
