"""Decodes the same requests under several arms, interleaved, with honest clocks.

For each batch all arms run one after the other, and the order rotates from batch to batch, so that
a machine that slows down half-way slows down all arms alike. Every program is compiled by a
warm-up call before the clock starts. Prefill and rounds are timed apart, each until the device has
finished. All arms go through this same code; plain autoregressive decoding is an arm as well.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from asd_jax.decode import (
    DecodeConfig,
    DecodeResult,
    DecodeState,
    Requests,
    make_requests,
    prefill,
    run_rounds,
)
from asd_jax.evaluation import drafter_cost
from asd_jax.evaluation.arms import Arm
from asd_jax.evaluation.conversation import Answer, Conversations
from asd_jax.evaluation.drafter_cost import DrafterCost
from asd_jax.evaluation.plan import (
    Failure,
    Plan,
    Request,
    Settings,
    TextCodec,
    padded_sizes,
)
from asd_jax.sampling import sampling_params
from asd_jax.sharding import to_host
from asd_jax.types import Controls, Target

_NO_LIMIT = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True)
class Measurement:
    """How long one batch took under one arm, all its turns together.

    Attributes:
      batch: The batch's number in the plan.
      arm: The arm's name.
      place: When its turn came among the arms of this batch, from 0.
      requests: Requests decoded.
      tokens: Emitted tokens.
      round_tokens: Those of them that rounds emitted; each turn's first comes from its prefill.
      prefill_seconds: Time of the prefills.
      rounds_seconds: Time of the rounds.
    """

    batch: int
    arm: str
    place: int
    requests: int
    tokens: int
    round_tokens: int
    prefill_seconds: float
    rounds_seconds: float


@dataclasses.dataclass(frozen=True)
class Started:
    """An arm begins with a batch."""

    batch: int
    arm: str
    requests: tuple[Request, ...]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program was compiled (or fetched from the compilation cache) and run once, untimed."""

    program: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Finished:
    """An arm is done with a batch; `answers` holds those that were still wanted."""

    batch: int
    arm: str
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    measurement: Measurement | None


Event = Started | Compiled | DrafterCost | Finished
# Called with (request id, arm name): whether that answer is there already.
IsDone = Callable[[str, str], bool]


def pending(
    plan: Plan, arms: Sequence[Arm], is_done: IsDone, *, rotates: bool = True
) -> Iterator[tuple[int, int, Arm]]:
    """Yields (batch number, place, arm) for all that is still to do, in the order of running."""
    for number, batch in enumerate(plan.batches):
        shift = number % len(arms) if rotates else 0
        for place, arm in enumerate((*arms[shift:], *arms[:shift])):
            if not all(is_done(request.prompt.id, arm.name) for request in batch):
                yield number, place, arm


def run(
    target: Target,
    arms: Sequence[Arm],
    plan: Plan,
    tokenizer: TextCodec,
    settings: Settings,
    *,
    is_done: IsDone = lambda request_id, arm: False,
    rotates: bool = True,
) -> Iterator[Event]:
    """Decodes all batches of a plan under all arms.

    A batch of which some answers are there already is decoded as a whole, since a row's last bits
    may depend on its batch; only the missing answers are given out.

    Args:
      target: The model.
      arms: At least one.
      plan: From `make_plan`, with the same settings.
      tokenizer: The target's.
      settings: The run's.
      is_done: Which answers are not wanted any more.
      rotates: Whether another arm begins with each batch; False keeps the order of `arms`, for a
        protocol that has an order of its own.

    Yields:
      Events as they come. A request that fails is in `Finished.failures`, and the others go on.
    """
    runner = _Runner(target, tokenizer, settings, plan.max_new_tokens)
    for number, place, arm in list(pending(plan, arms, is_done, rotates=rotates)):
        batch = plan.batches[number]
        yield Started(number, arm.name, batch)
        conversations = Conversations(batch, arm, tokenizer, target)
        clock = _Clock()
        try:
            while rows := conversations.next_rows():
                requests, config = runner.requests(conversations, rows)
                yield from runner.warm_up(arm, requests, config)
                result = runner.timed(arm, requests, config, clock)
                conversations.take(rows, result)
        except jax.errors.JaxRuntimeError as error:  # above all: out of memory
            if jax.process_count() > 1:
                raise  # the processes are no longer in step, or one of them is gone
            reason = (str(error).splitlines() or ["unknown error of the backend"])[0]
            conversations.fail_all(f"the device failed: {reason}")
        answers = conversations.answers()
        failures = tuple(conversations.failures.values())
        # Where a request failed half-way its time counts, but its tokens do not: no measurement.
        measured = None if failures else clock.measurement(number, place, arm.name, answers)
        wanted = [a for a in answers if not is_done(a.request.prompt.id, arm.name)]
        yield Finished(number, arm.name, tuple(wanted), failures, measured)


class _Clock:
    """Seconds spent on one batch under one arm."""

    def __init__(self) -> None:
        self.prefill = 0.0
        self.rounds = 0.0

    def measurement(
        self, batch: int, place: int, arm: str, answers: Sequence[Answer]
    ) -> Measurement:
        turns = [turn for answer in answers for turn in answer.turns]
        return Measurement(
            batch=batch,
            arm=arm,
            place=place,
            requests=len(answers),
            tokens=sum(len(turn.token_ids) for turn in turns),
            round_tokens=sum(max(len(turn.token_ids) - 1, 0) for turn in turns),
            prefill_seconds=self.prefill,
            rounds_seconds=self.rounds,
        )


class _Runner:
    """Builds requests, compiles programs once and times calls."""

    def __init__(
        self, target: Target, tokenizer: TextCodec, settings: Settings, max_new_tokens: int
    ) -> None:
        self._target = target
        self._settings = settings
        self._max_new_tokens = max_new_tokens
        self._stop_ids = () if settings.ignore_eos else tuple(tokenizer.stop_ids)
        self._warm: set[Any] = set()

    def requests(
        self, conversations: Conversations, rows: Sequence[int]
    ) -> tuple[Requests, DecodeConfig]:
        """Builds the device arrays for the next turn of some rows of a batch."""
        settings, arm = self._settings, conversations.arm
        batch = [conversations.batch[row] for row in rows]
        prompts = [conversations.prompts[row] for row in rows]
        limits = [request.max_new_tokens for request in batch]
        padded, room = padded_sizes(
            max(map(len, prompts)), max(limits), self._target.context_length
        )
        config = DecodeConfig(
            num_draft_tokens=arm.num_draft_tokens,
            max_new_tokens=self._max_new_tokens,
            max_len=room,
            stop_ids=self._stop_ids,
            protect_stop_ids=settings.protect_stop_ids,
            record_rounds=self._max_new_tokens if settings.trace and arm.num_draft_tokens else 0,
        )
        controls = Controls.strict()
        if arm.has_controls:
            controls = Controls(
                budget=np.array([request.budget for request in batch]),
                gate=np.array([request.gate for request in batch]),
                block_cap=np.array([request.block_cap for request in batch]),
            )
        requests = make_requests(
            prompts,
            controls=controls,
            sampling_params=sampling_params(
                len(batch),
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                seed=[request.seed for request in batch],
            ),
            max_new_tokens=limits,
            max_draft_tokens=[request.draft_length for request in batch],
            ledger=conversations.ledgers(rows),
            padded_length=padded,
            batch=settings.batch_size,
        )
        return requests, config

    def warm_up(self, arm: Arm, requests: Requests, config: DecodeConfig) -> Iterator[Event]:
        """Compiles what these shapes need and has not been compiled, by running it once."""
        shape = (id(arm.drafter), requests.prompt_tokens.shape, config)
        if (shape, arm.name) in self._warm:
            return
        start = time.perf_counter()
        state = jax.block_until_ready(prefill(self._target, arm.drafter, requests, config))
        if shape not in self._warm:
            name = f"prefill of {requests.prompt_tokens.shape[1]} tokens, {arm.drafter.name}"
            yield Compiled(name, time.perf_counter() - start)
        if arm.num_draft_tokens and id(arm.drafter) not in self._warm:
            yield drafter_cost.measure(self._target, arm.drafter, requests, state)
            self._warm.add(id(arm.drafter))
        leaves = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(state))
        if (arm.name, config, leaves) not in self._warm:
            start = time.perf_counter()
            # No round is run: this compiles and nothing else.
            jax.block_until_ready(self._rounds(arm, requests, config, state, 0))
            name = f"loop of {config.max_len} tokens, {arm.name}"
            yield Compiled(name, time.perf_counter() - start)
        self._warm |= {shape, (shape, arm.name), (arm.name, config, leaves)}

    def timed(
        self, arm: Arm, requests: Requests, config: DecodeConfig, clock: _Clock
    ) -> DecodeResult:
        """Decodes one turn to its end, adds to the clock and returns the result on the host."""
        jax.block_until_ready(requests)
        start = time.perf_counter()
        state = jax.block_until_ready(prefill(self._target, arm.drafter, requests, config))
        middle = time.perf_counter()
        state = jax.block_until_ready(self._rounds(arm, requests, config, state, _NO_LIMIT))
        clock.prefill += middle - start
        clock.rounds += time.perf_counter() - middle
        result: DecodeResult = to_host(state.result)
        return result

    def _rounds(
        self,
        arm: Arm,
        requests: Requests,
        config: DecodeConfig,
        state: DecodeState,
        num_rounds: int,
    ) -> DecodeState:
        # Rounds never look at the prompt, only at its length: without its padded tokens one
        # compiled loop serves all prompt lengths.
        requests = dataclasses.replace(requests, prompt_tokens=requests.prompt_tokens[:, :1])
        return run_rounds(
            self._target, arm.drafter, arm.rule, requests, config, state, np.int32(num_rounds)
        )
