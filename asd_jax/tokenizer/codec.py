"""Text to token ids and back, whole or as a stream, and conversations to text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from asd_jax.tokenizer.chat_template import render_chat, template_variables

# The special tokens that chat templates may name, as `bos_token` and so on.
SPECIAL_NAMES = ("bos", "eos", "unk", "pad")
_REPLACEMENT = "\ufffd"  # what decoders give for bytes that are not (yet) UTF-8


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer.

    Attributes:
      backend: The `tokenizers.Tokenizer` that does the work, without truncation or padding.
      bos_id: Id of the token that begins a sequence, None if the model has none.
      stop_ids: Ids that end an answer: everything that generation config, config or tokenizer
        declare as end of sequence, turn or message; ascending.
      adds_bos: Whether raw text should begin with `bos_id`, see `encode`.
      chat_templates: Jinja sources by name; the usual one is "default".
      special_tokens: What templates see as `bos_token`, `eos_token`, `unk_token`, `pad_token`.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    adds_bos: bool = False
    chat_templates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def num_ids(self) -> int:
        """One more than the largest id that stands for a token.

        A model may have more logits than that, padded to a round number. No text has trained those,
        so they must be masked before any token is drafted or emitted.
        """
        return len(self._token_strings)

    def token_strings(self) -> tuple[str, ...]:
        """Returns the stored spelling of every id, "" where the vocabulary has a gap.

        Spellings are the vocabulary's own (a leading space is "Ġ" or "▁"), which is what to compare
        when two models must share a vocabulary. Use `decode` for readable text.
        """
        return self._token_strings

    @functools.cached_property
    def _token_strings(self) -> tuple[str, ...]:
        vocab = self.backend.get_vocab(with_added_tokens=True)
        strings = [""] * (max(vocab.values(), default=-1) + 1)
        for string, index in vocab.items():
            strings[index] = string
        return tuple(strings)

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Returns the ids of `text`. Special tokens spelled out in it become their ids.

        A vocabulary may lack some bytes (SmolLM2's lacks six control characters and the lead bytes
        of planes 4 to 11); as in Hugging Face and llama.cpp they are dropped.

        Args:
          text: Any text.
          add_bos: Put `bos_id` first, if this model's raw text begins with it (`adds_bos`) and the
            text does not do so already.

        Raises:
          ValueError: Unpaired surrogates, which are not text.
        """
        try:
            ids = self.backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            if not isinstance(text, str):
                raise
            raise ValueError(f"cannot encode text with an unpaired surrogate: {text!r}") from error
        if add_bos and self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Ids that stand for no token, as those beyond `num_ids`, decode to nothing.

        Raises:
          ValueError: A negative id.
        """
        ids = [int(index) for index in ids]
        if ids and min(ids) < 0:
            raise ValueError(f"cannot decode the negative token id {min(ids)}")
        known = [index for index in ids if index < self.num_ids]
        return self.backend.decode(known, skip_special_tokens=skip_special_tokens)

    def stream_decoder(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """Returns a fresh decoder for one stream of ids."""
        return StreamDecoder(self, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        template: str | None = None,
        enable_thinking: bool | None = None,
        **kwargs: Any,
    ) -> str:
        """Renders a conversation to the text the model was trained on.

        Args:
          messages: Each `{"role": ..., "content": ...}`.
          add_generation_prompt: End with the header of the assistant's turn.
          template: Name of the template; by default "tool_use" if `tools` are given and there is
            one, else "default".
          enable_thinking: Whether the model is to think aloud before it answers, for templates with
            that switch (Qwen3's). None is the template's own default.
          **kwargs: Further template variables (`tools`, `date_string`, ...).

        Raises:
          ValueError: No such template, a message without role, thinking switched in a template
            without the switch, or the template itself refused the conversation (as for a role order
            that it does not know).
        """
        for number, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"message {number} has no role: {message!r}")
        if template is None:
            tools = kwargs.get("tools") is not None and "tool_use" in self.chat_templates
            template = "tool_use" if tools else "default"
        if template not in self.chat_templates:
            raise ValueError(
                f"no chat template {template!r}; this tokenizer has "
                f"{sorted(self.chat_templates) or 'none'}"
            )
        source = self.chat_templates[template]
        if enable_thinking is not None:
            if "enable_thinking" not in template_variables(source):
                raise ValueError(
                    f"thinking: got {enable_thinking!r}, allowed is None, as the chat template "
                    f"{template!r} has no switch for it (enable_thinking)"
                )
            kwargs["enable_thinking"] = enable_thinking
        return render_chat(
            source,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            # Templates tell `none` from undefined, and transformers always passes these two.
            **{"tools": None, "documents": None, **self.special_tokens, **kwargs},
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """Returns the ids of the rendered conversation.

        Templates write their own BOS, so none is added: `apply_chat_template`, then `encode`.

        Args:
          messages: As in `apply_chat_template`.
          **kwargs: As in `apply_chat_template`.

        Raises:
          ValueError: As `apply_chat_template` and `encode`.
        """
        return self.encode(self.apply_chat_template(messages, **kwargs))


class StreamDecoder:
    """Turns ids into text one at a time, never giving out part of a character.

    All that `push` and `flush` return, joined, is `Tokenizer.decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True):
        """Starts a stream; with `skip_special_tokens` control tokens give no text."""
        self._tokenizer = tokenizer
        self._strings = tokenizer.token_strings()
        # Left out here rather than by `decode`, for bytes on both sides of one form one character.
        self._skipped = tokenizer._special_ids if skip_special_tokens else frozenset()
        # The ids whose text is not all given out, behind one of context: decoders treat the first
        # token of a text differently (SentencePiece drops its space).
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that were given out

    def push(self, token_id: int) -> str:
        """Takes the next id and returns the text that is now certain, often ""."""
        token_id = int(token_id)
        if token_id in self._skipped or token_id >= len(self._strings):
            return ""
        self._window.append(token_id)
        text = self._text(self._window)
        if _is_byte_token(self._strings[token_id]):
            # ByteFallback decodes a run of byte tokens as a whole, so wait for its end.
            return ""
        # An incomplete character at the end shows as exactly one U+FFFD.
        end = len(text) - text.endswith(_REPLACEMENT)
        new = text[self._given : end]
        self._given = max(self._given, end)
        if end == len(text):
            context = self._text([token_id])
            if context and not context.endswith(_REPLACEMENT):
                self._window, self._given = [token_id], len(context)
        return new

    def flush(self) -> str:
        """Ends the stream and returns what was held back; an unfinished character is U+FFFD."""
        rest = self._text(self._window)[self._given :]
        self._window, self._given = [], 0
        return rest

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _is_byte_token(string: str) -> bool:
    return len(string) == 6 and string.startswith("<0x") and string.endswith(">")
