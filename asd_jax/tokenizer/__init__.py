"""Text to token ids and back, chat templates and stop ids, from a Hugging Face directory or a GGUF.

Encoding and decoding are done by the `tokenizers` library with the pipeline of the model's own
`tokenizer.json`, or with one rebuilt from what a GGUF says of it.
"""

from __future__ import annotations

from asd_jax.tokenizer.codec import StreamDecoder, Tokenizer
from asd_jax.tokenizer.gguf_tokenizer import TokenizerSource, from_gguf
from asd_jax.tokenizer.hf_tokenizer import from_hf

__all__ = ["StreamDecoder", "Tokenizer", "from_checkpoint", "from_gguf", "from_hf"]


def from_checkpoint(source: TokenizerSource) -> Tokenizer:
    """Builds the tokenizer of an opened checkpoint of either format.

    Raises:
      ValueError: As `from_hf` and `from_gguf`.
    """
    directory = source.tokenizer.get("directory")
    return from_gguf(source) if directory is None else from_hf(directory)
