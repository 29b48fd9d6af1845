"""What tells two tokenizers apart: how text becomes ids, and where answers end."""

from __future__ import annotations

import hashlib
import json

from asd_jax.tokenizer.codec import Tokenizer


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Returns a SHA-256 over model, special ids and chat templates, 64 hex digits.

    Args:
      tokenizer: Of any source; the same one read from a GGUF and from a directory may differ in
        how it is written down, and then has another digest.
    """
    parts = {
        "backend": tokenizer.backend.to_str(),
        "bos_id": tokenizer.bos_id if tokenizer.adds_bos else None,
        "stop_ids": tokenizer.stop_ids,
        "chat_templates": dict(tokenizer.chat_templates),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
