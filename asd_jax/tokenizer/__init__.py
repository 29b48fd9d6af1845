"""Text to token ids and back, chat templates and stop ids, from a Hugging Face directory or a GGUF.

Encoding and decoding are done by the `tokenizers` library with the pipeline of the model's own
`tokenizer.json`, or with one rebuilt from what a GGUF says of it.
"""

from __future__ import annotations

from pathlib import Path

from asd_jax.tokenizer.codec import StreamDecoder, Tokenizer
from asd_jax.tokenizer.gguf_tokenizer import TokenizerSource, from_gguf
from asd_jax.tokenizer.hf_tokenizer import from_hf
from asd_jax.tokenizer.ids_only import IdsOnly, ids_only, without_tokenizer

__all__ = [
    "IdsOnly",
    "StreamDecoder",
    "Tokenizer",
    "check_vocabulary",
    "from_checkpoint",
    "from_gguf",
    "from_hf",
]


def from_checkpoint(source: TokenizerSource) -> Tokenizer:
    """Builds the tokenizer of an opened checkpoint of either format.

    A model directory without any tokenizer file gives `IdsOnly`, which takes and gives ids.

    Raises:
      ValueError: As `from_hf`, `from_gguf` and `check_vocabulary`.
    """
    directory = source.tokenizer.get("directory")
    if directory is not None and without_tokenizer(Path(directory)):
        size = source.config.get("vocab_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(
                f"{source.path}: has no tokenizer, and vocab_size: got {size!r}, allowed then is a "
                "whole number >= 1"
            )
        return ids_only(source.config, source.generation_config, Path(source.path))
    tokenizer = from_gguf(source) if directory is None else from_hf(directory)
    vocab_size = source.config.get("vocab_size")
    if isinstance(vocab_size, int):  # that it must be one is for the model's config reader to say
        check_vocabulary(tokenizer, vocab_size, source.path)
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int, path: str | Path) -> None:
    """Checks that every id of a tokenizer has a logit.

    The other way round is usual: see `Tokenizer.num_ids`.

    Args:
      tokenizer: The tokenizer.
      vocab_size: V of the model.
      path: Of the checkpoint, for the message.

    Raises:
      ValueError: The tokenizer has more ids than the model.
    """
    if tokenizer.num_ids > vocab_size:
        raise ValueError(
            f"{path}: the tokenizer has {tokenizer.num_ids} ids, but the model's vocab_size is "
            f"{vocab_size}; do they belong together?"
        )
