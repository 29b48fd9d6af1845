"""What stands in for the tokenizer of a checkpoint that comes without one: ids in, ids out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from asd_jax.tokenizer.codec import Tokenizer
from asd_jax.tokenizer.declared_ids import declared_ids, united

# Any of these says that a tokenizer was meant to be there.
_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclasses.dataclass(frozen=True)
class IdsOnly(Tokenizer):
    """A tokenizer without text, for prompts that come as `prompt_token_ids`.

    Attributes:
      size: Ids of the model.
    """

    size: int = 0

    @property
    def num_ids(self) -> int:
        """Ids of the model: without a tokenizer all of them stand for a token."""
        return self.size

    def token_strings(self) -> tuple[str, ...]:
        """Returns "" for every id: no two such vocabularies can be compared."""
        return ("",) * self.size

    def encode(self, text: str, *, add_bos: bool = False) -> NoReturn:
        """Raises a ValueError: text cannot be encoded."""
        del text, add_bos
        self._refuse()

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises a ValueError: there is no template."""
        del args, kwargs
        self._refuse()

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns no text."""
        del ids, skip_special_tokens
        return ""

    def _refuse(self) -> NoReturn:
        raise ValueError("the target's checkpoint has no tokenizer: give prompt_token_ids")


def without_tokenizer(directory: Path) -> bool:
    """Returns whether a model directory has no tokenizer file of any kind."""
    return not any((directory / name).exists() for name in _FILES)


def ids_only(config: dict[str, Any], generation_config: dict[str, Any], path: Path) -> IdsOnly:
    """Builds the stand-in from what the configs declare.

    Args:
      config: With a whole `vocab_size`.
      generation_config: May be empty.
      path: Of the checkpoint, for messages.

    Raises:
      ValueError: A stop id that the model does not have.
    """
    size = config["vocab_size"]
    stop_ids = united(
        declared_ids(values.get("eos_token_id"), field=f"{path / name}: eos_token_id", num_ids=size)
        for name, values in (
            ("generation_config.json", generation_config),
            ("config.json", config),
        )
    )
    empty = tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token=""))
    return IdsOnly(backend=empty, stop_ids=stop_ids, size=size)
