"""Text to token ids and back, chat templates and stop ids, from a Hugging Face directory or a GGUF.

Encoding and decoding are done by the `tokenizers` library with the pipeline of the model's own
`tokenizer.json`. A GGUF names that pipeline only by a keyword (`tokenizer.ggml.pre`), so it is
rebuilt here; an unknown keyword is an error, since a wrong split gives ids the model was not
trained on and text that is merely worse.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

_REPLACEMENT = "\ufffd"  # what decoders give for bytes that are not (yet) UTF-8
_SPECIAL_NAMES = ("bos", "eos", "unk", "pad")
# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


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
    def vocab_size(self) -> int:
        """One more than the largest id. The model's logits may be padded to more."""
        return len(self.token_strings())

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

        Ids beyond the vocabulary, as the padding of a model's logits has them, decode to nothing.

        Raises:
          ValueError: A negative id.
        """
        ids = [int(index) for index in ids]
        if ids and min(ids) < 0:
            raise ValueError(f"cannot decode the negative token id {min(ids)}")
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def stream_decoder(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """Returns a fresh decoder for one stream of ids."""
        return StreamDecoder(self, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Renders a conversation to the text the model was trained on.

        Args:
          messages: Each `{"role": ..., "content": ...}`.
          add_generation_prompt: End with the header of the assistant's turn.
          template: Name of the template; by default "tool_use" if `tools` are given and there is
            one, else "default".
          **kwargs: Further template variables (`tools`, `enable_thinking`, ...).

        Raises:
          ValueError: No such template, a message without role, or the template itself refused the
            conversation (as for a role order that it does not know).
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
        try:
            return _compiled(self.chat_templates[template]).render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                # Templates tell `none` from undefined, and transformers always passes these two.
                **{"tools": None, "documents": None, **self.special_tokens, **kwargs},
            )
        except Exception as error:  # a template is a program and may raise anything
            raise ValueError(f"the chat template refused these messages: {error}") from error

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """Returns the ids of the rendered conversation.

        Templates write their own BOS, so none is added: `apply_chat_template`, then `encode`.
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


class _Source(Protocol):
    """The parts of an `asd_jax.checkpoints.source.CheckpointSource` that are used here."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def generation_config(self) -> dict[str, Any]: ...
    @property
    def tokenizer(self) -> dict[str, Any]: ...


def from_checkpoint(source: _Source) -> Tokenizer:
    """Builds the tokenizer of an opened checkpoint of either format.

    Raises:
      ValueError: As `from_hf` and `from_gguf`.
    """
    directory = source.tokenizer.get("directory")
    return from_gguf(source) if directory is None else from_hf(directory)


def from_hf(directory: str | Path) -> Tokenizer:
    """Builds the tokenizer of a Hugging Face directory.

    Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`, `chat_template.jinja`,
    `additional_chat_templates/*.jinja`, `generation_config.json` and `config.json`.

    Raises:
      ValueError: No or a corrupt `tokenizer.json`, invalid JSON, or an end token that the
        vocabulary lacks.
    """
    directory = Path(directory)
    path = directory / "tokenizer.json"
    if not path.is_file():
        hint = "; tokenizer.model must be converted first" if _has(directory, "*.model") else ""
        raise ValueError(f"{path}: no such file, so there is no tokenizer{hint}")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path}: corrupt tokenizer: {error}") from error
    # Files saved after training may carry these, and would cut prompts without a word.
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(directory / "tokenizer_config.json")
    configs = [_read_json(directory / f"{name}.json") for name in ("generation_config", "config")]
    special = {
        f"{name}_token": text
        for name in (*_SPECIAL_NAMES, "eot")
        if (text := _content(config.get(f"{name}_token"))) is not None
    }
    stop_ids = [entry.get("eos_token_id") for entry in configs]
    for name in ("eos_token", "eot_token"):
        if name in special:
            stop_ids.append(backend.token_to_id(special[name]))
            if stop_ids[-1] is None:
                raise ValueError(f"{path}: has no token {special[name]!r}, declared as {name}")
    if "bos_token" in config:
        bos_id = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    else:
        bos_ids = _ids([entry.get("bos_token_id") for entry in configs])
        bos_id = bos_ids[0] if bos_ids else None
    return Tokenizer(
        backend=backend,
        bos_id=bos_id,
        stop_ids=_ids(stop_ids),
        adds_bos=bos_id is not None and backend.encode("a").ids[:1] == [bos_id],
        chat_templates=_hf_templates(directory, config.get("chat_template")),
        special_tokens=special,
    )


def from_gguf(source: _Source) -> Tokenizer:
    """Builds the tokenizer that a GGUF describes: byte-level BPE ("gpt2") or SentencePiece BPE.

    Args:
      source: An opened GGUF; its `tokenizer` is the file's `tokenizer.*` metadata.

    Raises:
      ValueError: No tokenizer in the file, an unknown model or pre-tokenizer, or inconsistent
        vocabulary, merges, scores or types.
    """
    path, prefix = source.path, "tokenizer.ggml."
    fields = {k[len(prefix) :]: v for k, v in source.tokenizer.items() if k.startswith(prefix)}
    tokens, kind = fields.get("tokens"), fields.get("model")
    if not tokens or kind is None:
        raise ValueError(f"{path}: the GGUF has no tokenizer ({prefix}model and {prefix}tokens)")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{path}: tokenizer {kind!r} is not supported; allowed: gpt2, llama")
    types = fields.setdefault("token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ValueError(f"{path}: {len(tokens)} tokens but {len(types)} token types")
    try:
        backend = _byte_level(fields) if kind == "gpt2" else _sentencepiece(fields)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path}: cannot build the tokenizer: {error}") from error
    for members, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
        backend.add_tokens(
            [
                tokenizers.AddedToken(token, normalized=False, special=special)
                for token, member in zip(tokens, types, strict=True)
                if member in members
            ]
        )
    ids = {name: fields.get(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    ids |= {"unk": fields.get("unknown_token_id"), "pad": fields.get("padding_token_id")}
    wrong = {name: i for name, i in ids.items() if i is not None and not 0 <= i < len(tokens)}
    if wrong:
        raise ValueError(f"{path}: special ids {wrong} are outside the {len(tokens)} tokens")
    configs = (source.generation_config, source.config)
    stops = [ids["eos"], ids["eot"], ids["eom"], *(c.get("eos_token_id") for c in configs)]
    default_bos = kind == "llama" or _PRE_TOKENIZERS.get(fields.get("pre", "")) == "llama3"
    return Tokenizer(
        backend=backend,
        bos_id=ids["bos"],
        stop_ids=_ids(stops),
        adds_bos=bool(fields.get("add_bos_token", default_bos)),
        chat_templates=_gguf_templates(source.tokenizer),
        special_tokens={
            f"{name}_token": tokens[index]
            for name in _SPECIAL_NAMES
            if (index := ids[name]) is not None
        },
    )


# tokenizer.ggml.pre -> family; the groups are those of llama.cpp's llama-vocab.cpp.
_PRE_TOKENIZERS = {
    "default": "default",
    "gpt-2": "gpt2",
    "mpt": "gpt2",
    "olmo": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama3": "llama3",
    "llama-v3": "llama3",
    "llama-bpe": "llama3",
    "falcon3": "llama3",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
}
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt2": (_GPT2,),
    "llama3": (_MODERN % r"\p{N}{1,3}",),
    "qwen2": (_MODERN % r"\p{N}",),
}


def _byte_level(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    pre = fields.get("pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ValueError(f"unknown pre-tokenizer {pre!r} (tokenizer.ggml.pre); known: {known}")
    family = _PRE_TOKENIZERS[pre]
    if "merges" not in fields:
        raise ValueError("tokenizer.ggml.merges is missing")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in fields["merges"])]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(fields["tokens"])},
            merges=merges,
            # Llama 3 takes a whole word that is in the vocabulary, whatever the merges say.
            ignore_merges=family == "llama3",
        )
    )
    if family == "qwen2":
        backend.normalizer = normalizers.NFC()
    if family == "digits":
        # SmolLM2's tokenizer.json, word for word.
        steps: list[Any] = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    else:
        steps = [pre_tokenizers.Split(tokenizers.Regex(r), "isolated") for r in _SPLITS[family]]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, types, scores = fields["tokens"], fields["token_type"], fields.get("scores", ())
    if len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens but {len(scores)} scores")
    unknown = fields.get("unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges_from_scores(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.get("add_space_prefix", True)
    spaces = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _merges_from_scores(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Returns merges in the order SentencePiece applies them: the best-scored result first."""
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL}
    ranked = sorted(range(len(tokens)), key=lambda index: -scores[index])
    return [
        (token[:cut], token[cut:])
        for token in (tokens[index] for index in ranked)
        if token in normal
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    named = {k[len(key) + 1 :]: v for k, v in metadata.items() if k.startswith(f"{key}.")}
    return {**named, "default": metadata[key]} if key in metadata else named


def _hf_templates(directory: Path, declared: Any) -> dict[str, str]:
    if declared is None:
        declared = {}
    elif isinstance(declared, str):
        declared = {"default": declared}
    elif isinstance(declared, list):  # [{"name": ..., "template": ...}, ...]
        declared = {e.get("name"): e.get("template") for e in declared if isinstance(e, dict)}
    templates: dict[Any, Any] = dict(declared) if isinstance(declared, dict) else {"": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ValueError(
            f"{directory / 'tokenizer_config.json'}: chat_template must be a string or a list of "
            "objects with name and template"
        )
    for path in sorted(directory.glob("additional_chat_templates/*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    path = directory / "chat_template.jinja"
    if path.is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates


def _has(directory: Path, pattern: str) -> bool:
    return any(directory.glob(pattern))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _ids(values: Iterable[int | list[int] | None]) -> tuple[int, ...]:
    flat: set[int] = set()
    for value in values:
        flat.update(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(sorted(flat))


class _Generation(jinja2.ext.Extension):
    """Accepts `{% generation %}` blocks, which mark the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    """Compiles a template as transformers does (utils/chat_template_utils.py, 5.24)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    # jinja2's own tojson escapes HTML characters.
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
