"""From prompts to batches: token ids, each request's own limits, and which requests go together.

The plan depends on the prompts and the settings alone, never on what is done already. A run that
is taken up again therefore decodes the very batches that the first one would have decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from asd_jax.decode import bucket_length
from asd_jax.evaluation.prompts import Prompt
from asd_jax.types import Controls

# Compiling costs more than padding: few, generous sizes.
_SMALLEST_PROMPT = 128
_SMALLEST_ROOM = 256
_MAX_SEED = 2**63 - 1
_NO_CAP = 2**31 - 1


class TextCodec(Protocol):
    """What is needed of a tokenizer; `asd_jax.tokenizer.Tokenizer` is one."""

    @property
    def stop_ids(self) -> tuple[int, ...]: ...  # noqa: D102

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]: ...  # noqa: D102

    def encode_chat(  # noqa: D102
        self, messages: Sequence[Mapping[str, Any]], *, enable_thinking: bool | None = None
    ) -> list[int]: ...

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all requests of a run have in common.

    Attributes:
      controls: Budget, gate and cap of requests without their own; scalar leaves.
      max_new_tokens: Length limit of requests without their own, tokens a turn.
      batch_size: B, requests decoded together.
      temperature: 0 = greedy.
      top_k: 0 = all.
      top_p: 1 = all.
      seed: A request without its own seed gets this plus its index.
      ignore_eos: Whether stop ids are ordinary tokens, so that every request has the same length.
      protect_stop_ids: As in `DecodeConfig`.
      trace: Whether to record every exception.
      thinking: Whether the model is to think aloud in requests that do not say so themselves; None
        is the chat template's own default.
    """

    controls: Controls = dataclasses.field(default_factory=Controls)
    max_new_tokens: int = 128
    batch_size: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    protect_stop_ids: bool = True
    trace: bool = False
    thinking: bool | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt with everything resolved that does not depend on an arm.

    Attributes:
      prompt: What its author wrote.
      first_ids: Token ids of the first turn's prompt.
      budget: Regret budget for the whole request, logits.
      gate: Logits a token of suffix value.
      block_cap: Exceptions a block.
      max_new_tokens: Tokens a turn, within the run's output buffer.
      draft_length: Most tokens that may be proposed to it in a round.
      seed: Seed of its noise.
      thinking: Whether the chat template lets the model think aloud, in all turns; None is the
        template's own default.
    """

    prompt: Prompt
    first_ids: tuple[int, ...]
    budget: float
    gate: float
    block_cap: int
    max_new_tokens: int
    draft_length: int
    seed: int
    thinking: bool | None = None


@dataclasses.dataclass(frozen=True)
class Failure:
    """A request without an answer.

    Attributes:
      id: The request.
      line: Its line in the prompt file.
      message: Why.
      arm: The arm in which it failed, or None where none was tried.
    """

    id: str
    line: int
    message: str
    arm: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of a run.

    Attributes:
      batches: At most `batch_size` requests each, of alike prompt lengths and turns.
      failures: Requests that cannot be decoded.
      max_new_tokens: Size of the output buffer, the same for all batches: one program more or less.
    """

    batches: tuple[tuple[Request, ...], ...]
    failures: tuple[Failure, ...]
    max_new_tokens: int


def make_plan(
    prompts: Sequence[Prompt],
    tokenizer: TextCodec,
    settings: Settings,
    *,
    vocab_size: int,
    context_length: int,
) -> Plan:
    """Encodes the prompts and groups them into batches.

    Batches are in the order of the file where each is one prompt, and otherwise by padded length,
    short ones first: a run that is cut short has then the most answers, and has compiled the least.

    Args:
      prompts: From `read_prompts`.
      tokenizer: The target's.
      settings: The run's.
      vocab_size: V of the target; ids beyond it fail.
      context_length: Positions of the target; prompts that leave no room for a token fail.

    Returns:
      A `Plan`. Prompts that cannot be decoded are in its `failures`.
    """
    wanted = [prompt.max_new_tokens or settings.max_new_tokens for prompt in prompts]
    buffer = min(max(settings.max_new_tokens, *wanted), context_length - 1)
    requests: list[Request] = []
    failures: list[Failure] = []
    for prompt, max_new_tokens in zip(prompts, wanted, strict=True):
        try:
            ids = prompt_ids(
                prompt,
                (),
                tokenizer,
                thinking=_own(prompt.thinking, settings.thinking),
                vocab_size=vocab_size,
                context_length=context_length,
            )
        except ValueError as error:
            failures.append(Failure(prompt.id, prompt.line, str(error)))
            continue
        requests.append(_resolve(prompt, ids, min(max_new_tokens, buffer), settings))

    # Dicts keep the order of the file within a group, and between those of one length.
    groups: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        bucket = bucket_length(len(request.first_ids), smallest=_SMALLEST_PROMPT)
        key = (bucket, request.prompt.num_turns) if settings.batch_size > 1 else (0, 0)
        groups.setdefault(key, []).append(request)
    size = settings.batch_size
    batches = [
        tuple(group[start : start + size])
        for _, group in sorted(groups.items(), key=lambda item: item[0][0])
        for start in range(0, len(group), size)
    ]
    return Plan(tuple(batches), tuple(failures), buffer)


def _resolve(
    prompt: Prompt, ids: Sequence[int], max_new_tokens: int, settings: Settings
) -> Request:
    """Fills in the run's values where the prompt has none of its own."""
    controls = settings.controls
    seed = min(settings.seed + prompt.index, _MAX_SEED)
    return Request(
        prompt=prompt,
        first_ids=tuple(ids),
        budget=float(_own(prompt.budget, controls.budget)),
        gate=float(_own(prompt.gate, controls.gate)),
        block_cap=int(_own(prompt.block_cap, controls.block_cap)),
        max_new_tokens=max_new_tokens,
        draft_length=_own(prompt.draft_length, _NO_CAP),
        seed=_own(prompt.seed, seed),
        thinking=_own(prompt.thinking, settings.thinking),
    )


def _own(value: Any, default: Any) -> Any:
    return default if value is None else value


def prompt_ids(
    prompt: Prompt,
    answers: Sequence[str],
    tokenizer: TextCodec,
    *,
    vocab_size: int,
    context_length: int,
    thinking: bool | None = None,
) -> list[int]:
    """Returns the token ids of a request's next turn.

    Args:
      prompt: The request.
      answers: The model's own answers so far, thoughts included, as it is for the chat template to
        leave them out; the next turn is number `len(answers)`.
      tokenizer: The target's.
      vocab_size: V of the target.
      context_length: Positions of the target.
      thinking: As in `Request`; raw text and ids are not touched by it.

    Returns:
      Ids of the whole conversation up to where the next answer begins.

    Raises:
      ValueError: The ids are none, too many for the context, or outside the vocabulary, or the
        chat template refused the conversation.
    """
    if prompt.kind == "prompt_token_ids":
        ids = list(prompt.content)
    elif prompt.kind == "prompt":
        ids = tokenizer.encode(prompt.content, add_bos=True)
    else:
        ids = tokenizer.encode_chat(_conversation(prompt, answers), enable_thinking=thinking)
    turn = f"turn {len(answers) + 1}: " if prompt.num_turns > 1 else ""
    if not ids:
        raise ValueError(f"{turn}the prompt is empty: no tokens")
    if len(ids) >= context_length:
        raise ValueError(
            f"{turn}the prompt is too long: got {len(ids)} tokens, allowed is < {context_length}, "
            "the context of the target"
        )
    if max(ids) >= vocab_size:
        raise ValueError(f"{turn}got token id {max(ids)}, allowed is 0..{vocab_size - 1}")
    return ids


def _conversation(prompt: Prompt, answers: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns the messages up to the next user turn, with the model's answers in between."""
    if prompt.kind == "messages":
        return list(prompt.content)
    messages: list[Mapping[str, Any]] = []
    for turn, answer in zip(prompt.content, answers, strict=False):
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": prompt.content[len(answers)]})
    return messages


def padded_sizes(longest: int, max_new_tokens: int, context_length: int) -> tuple[int, int]:
    """Returns the padded prompt length P and the room `max_len` for a batch.

    Args:
      longest: Tokens of its longest prompt, below `context_length`.
      max_new_tokens: Most tokens that one of its requests may emit.
      context_length: Positions of the target.

    Returns:
      P and `max_len`, steps of `bucket_length` within the context: a room that is too large costs
      memory, and time where a forward reads all of it.
    """
    room = min(bucket_length(longest + max_new_tokens, smallest=_SMALLEST_ROOM), context_length)
    return min(bucket_length(longest, smallest=_SMALLEST_PROMPT), room), room
