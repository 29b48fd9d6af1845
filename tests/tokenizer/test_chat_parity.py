"""Conversations, added tokens and BOS against transformers, from one and the same directory."""

from pathlib import Path

import pytest

from asd_jax.tokenizer import from_hf
from tests.tiny_tokenizer import THINK, hf_dir

pytestmark = pytest.mark.parity

TEMPLATES = Path(__file__).parents[1] / "data" / "chat_templates"
SYSTEM = {"role": "system", "content": "\tBe <brief> & é. "}
THOUGHT = "<think>\nOne.\n\nTwo.\n</think>\n\nThree."
ASK = {"role": "user", "content": " 2+2? <|end|>"}
TALKS = [
    [ASK],
    [SYSTEM, ASK],
    [ASK, {"role": "assistant", "content": THOUGHT}, ASK],
    [SYSTEM, ASK, {"role": "assistant", "content": "<think>\ncut"}, ASK],
    [ASK, {"role": "assistant", "content": "no\n</think>\n\nyes"}, ASK, SYSTEM, ASK],
    [ASK, {"role": "assistant", "content": THOUGHT, "reasoning_content": "\nAside.\n"}],
]


def both(path, *, bos=True, **config):
    """Returns our tokenizer of a directory and that of transformers."""
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": "<s>", "eos_token": "<|end|>"}
    hf_dir(path, tokenizer_config={**special, **THINK, **config}, bos=bos)
    return from_hf(path), PreTrainedTokenizerFast.from_pretrained(path)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "smollm2"])
def test_chats_equal_those_of_transformers(tmp_path, name, talk):
    template = (TEMPLATES / f"{name}.jinja").read_text()
    ours, theirs = both(tmp_path / "m", chat_template=template)
    switches = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    extras = [{}, {"tools": [{"z": "<é>", "a": [1, None]}]}]
    for switch in switches if name == "qwen3" else switches[:1]:
        for extra in extras:
            for prompted in (True, False):
                kwargs = {"add_generation_prompt": prompted, **switch, **extra}
                text = ours.apply_chat_template(talk, **kwargs)
                assert text == theirs.apply_chat_template(talk, tokenize=False, **kwargs)
                ids = ours.encode_chat(talk, **kwargs)
                assert ids == theirs.apply_chat_template(talk, return_dict=False, **kwargs)
                assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("in_pipeline", [True, False])
@pytest.mark.parametrize("declared", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_raw_text_begins_as_in_transformers(tmp_path, in_pipeline, declared):
    ours, theirs = both(tmp_path / "m", bos=in_pipeline, **declared)
    for text in ("a the", "<think>x</think><|end|>"):
        assert ours.encode(text, add_bos=True) == theirs.encode(text)
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.num_ids == len(theirs)
