"""Chat templates: the constructs of the official ones, the thinking switch, and what is refused.

The templates in `tests/data/chat_templates` have the control flow of the official ones of Llama
3.1, Qwen2.5, Qwen3 and SmolLM2 around words of their own.
"""

import datetime
from pathlib import Path

import pytest

from asd_jax.tokenizer import Tokenizer, from_gguf, from_hf
from tests.tiny_tokenizer import BOS, EOT, THINK, gguf_source, hf_dir

TEMPLATES = Path(__file__).parents[1] / "data" / "chat_templates"
ASK = [{"role": "user", "content": " 2+2? "}]
RULED = [{"role": "system", "content": " Be brief. "}, *ASK]
THOUGHT = "<think>\nTwo and two.\n</think>\n\nFour."
TALK = [*ASK, {"role": "assistant", "content": THOUGHT}, {"role": "user", "content": "Why?"}]


@pytest.fixture
def load(tmp_path):
    """Returns a function from a template's name to a tokenizer that has it in a file."""

    def load_template(name):
        path = hf_dir(
            tmp_path / name,
            bos=True,
            tokenizer_config={"bos_token": "<s>", "eos_token": "<|end|>", **THINK},
        )
        (path / "chat_template.jinja").write_text((TEMPLATES / f"{name}.jinja").read_text())
        return from_hf(path)

    return load_template


DAY = {"date_string": "02 Feb 2002"}


@pytest.mark.parametrize(
    ("name", "messages", "kwargs", "expected"),
    [
        (
            "llama3", RULED, DAY,
            "<s>[system]\n\nDay: 02 Feb 2002\n\nBe brief.<|end|>[user]\n\n2+2?<|end|>"
            "[assistant]\n\n",
        ),
        (
            "llama3", TALK, DAY | {"add_generation_prompt": False},
            "<s>[system]\n\nDay: 02 Feb 2002\n\n<|end|>[user]\n\n2+2?<|end|>[assistant]\n\n"
            f"{THOUGHT}<|end|>[user]\n\nWhy?<|end|>",
        ),
        (
            "llama3", ASK, DAY | {"tools": [{"a": "<é>"}], "builtin_tools": ["shell", "map"]},
            "<s>[system]\n\nMode: tools\nOwn: map\nDay: 02 Feb 2002\n\n<|end|>[user]\n\n"
            '{\n    "a": "<é>"\n}\n\n2+2?<|end|>[assistant]\n\n',
        ),
        (
            "qwen2", ASK, {},
            "[system]\nAnswer plainly.<|end|>\n[user]\n 2+2? <|end|>\n[assistant]\n",
        ),
        (
            "qwen2", [*RULED, *TALK[1:]], {},
            "[system]\n Be brief. <|end|>\n[user]\n 2+2? <|end|>\n"
            f"[assistant]\n{THOUGHT}<|end|>\n[user]\nWhy?<|end|>\n[assistant]\n",
        ),
        (
            "qwen2", ASK, {"tools": [{"b": 1}]},
            '[system]\nAnswer plainly.\n\nTools:\n{"b": 1}<|end|>\n[user]\n 2+2? <|end|>\n'
            "[assistant]\n",
        ),
        ("qwen3", ASK, {}, "[user]\n 2+2? <|end|>\n[assistant]\n"),
        (
            "qwen3", RULED, {"enable_thinking": True},
            "[system]\n Be brief. <|end|>\n[user]\n 2+2? <|end|>\n[assistant]\n",
        ),
        (
            "qwen3", ASK, {"enable_thinking": False},
            "[user]\n 2+2? <|end|>\n[assistant]\n<think>\n\n</think>\n\n",
        ),
        (
            "qwen3", TALK, {},
            "[user]\n 2+2? <|end|>\n[assistant]\nFour.<|end|>\n[user]\nWhy?<|end|>\n[assistant]\n",
        ),
        (
            "qwen3", TALK[:2], {"add_generation_prompt": False},
            f"[user]\n 2+2? <|end|>\n[assistant]\n{THOUGHT}<|end|>\n",
        ),
        (
            "smollm2", ASK, {},
            "[system]\nYou are small but willing.<|end|>\n[user]\n 2+2? <|end|>\n[assistant]\n",
        ),
        (
            "smollm2", RULED, {},
            "[system]\n Be brief. <|end|>\n[user]\n 2+2? <|end|>\n[assistant]\n",
        ),
    ],
)  # fmt: skip
def test_the_constructs_of_the_official_templates(load, name, messages, kwargs, expected):
    assert load(name).apply_chat_template(messages, **kwargs) == expected


def test_a_template_knows_the_day(load):
    text = load("llama3").apply_chat_template(ASK)
    day = text.partition("Day: ")[2].partition("\n")[0]
    assert datetime.datetime.strptime(day, "%d %b %Y") <= datetime.datetime.now()


def test_special_tokens_in_a_chat_are_single_ids(load):
    tokenizer = load("qwen3")
    ids = tokenizer.encode_chat(TALK[:2], add_generation_prompt=False)
    think, unthink = tokenizer.num_ids - 2, tokenizer.num_ids - 1
    assert [i for i in ids if i >= BOS] == [EOT, think, unthink, EOT]
    # Thoughts are not special: they are part of the answer's text, and so of the next prompt.
    assert tokenizer.decode([think, EOT, unthink]) == "<think></think>"


# BOS


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_chats_have_the_bos_that_their_template_writes_and_no_other(load, name):
    tokenizer = load(name)
    assert tokenizer.adds_bos
    ids = tokenizer.encode_chat(ASK)
    assert ids.count(BOS) == (name == "llama3")
    assert ids == tokenizer.encode(tokenizer.apply_chat_template(ASK))


# The thinking switch


def test_thinking_cannot_be_switched_where_there_is_no_switch(load):
    with pytest.raises(ValueError, match=r"thinking: got False, allowed is None, as .*'default'"):
        load("llama3").encode_chat(ASK, enable_thinking=False)
    unset = load("smollm2").encode_chat(ASK, enable_thinking=None)
    assert unset == load("smollm2").encode_chat(ASK)


# The environment


def with_template(template, **special):
    backend = from_gguf(gguf_source()).backend
    return Tokenizer(
        backend, bos_id=BOS, adds_bos=True, chat_templates={"default": template},
        special_tokens={"bos_token": "<s>", **special},
    )  # fmt: skip


USER_HI = [{"role": "user", "content": "hi <&>"}]


@pytest.mark.parametrize(
    ("template", "kwargs", "expected"),
    [
        ("{% for m in messages %}\n{{ m['role'] }}\n{% endfor %}", {}, "user\n"),
        ("{{ messages | tojson }}", {}, '[{"role": "user", "content": "hi <&>"}]'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(indent=1) }}", {}, '{\n "b": 1,\n "a": "é"\n}'),
        ("{{ tools is none }}{{ documents is defined }}", {}, "TrueTrue"),
        ("{{ thinking }}{{ bos_token }}", {"thinking": 3}, "3<s>"),
        ("{% if add_generation_prompt %}A{% endif %}", {"add_generation_prompt": False}, ""),
        ("{% for m in messages %}{% break %}{% endfor %}x", {}, "x"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", {}, "user"),
        (
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
            {},
            "21",
        ),
        ("{{ strftime_now('%%') }}", {}, "%"),
    ],
)
def test_templates_render_as_in_transformers(template, kwargs, expected):
    assert with_template(template).apply_chat_template(USER_HI, **kwargs) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['content'] + 3 }}", "the chat template refused"),
        ("{% if %}", "the chat template refused"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
    ],
)
def test_templates_that_fail_or_reach_out_are_errors(template, message):
    with pytest.raises(ValueError, match=message):
        with_template(template).apply_chat_template(USER_HI)


def test_messages_and_template_names_are_checked():
    tokenizer = with_template("x")
    with pytest.raises(ValueError, match="message 1 has no role"):
        tokenizer.apply_chat_template([*USER_HI, {"content": "no"}])
    with pytest.raises(
        ValueError, match=r"no chat template 'rag'; this tokenizer has \['default'\]"
    ):
        tokenizer.apply_chat_template(USER_HI, template="rag")
    with pytest.raises(ValueError, match="this tokenizer has none"):
        from_gguf(gguf_source()).apply_chat_template(USER_HI)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer_config": {"chat_template": "a\n{% if %}"}},
            r"tokenizer_config\.json: chat_template 'default': line 2: no valid chat template: Exp",
        ),
        (
            {"chat_template": {"chat_template": "{{ oops"}},
            r"chat_template\.json: chat_template 'default': line 1: no valid chat template",
        ),
        ({"chat_template": {"chat_template": 3}}, r"chat_template\.json: chat_template must be"),
        (
            {"tokenizer_config": {"chat_template": [{"name": "x"}]}},
            r"tokenizer_config\.json: chat_template must be a string or a list of objects",
        ),
        ({"tokenizer_config": {"chat_template": {"x": "y"}}}, "chat_template must be a string"),
    ],
)
def test_templates_that_cannot_be_used_are_named_when_loaded(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        from_hf(hf_dir(tmp_path / "m", **files))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{% for %}", r"chat_template\.jinja: line 1: no valid chat template"),
        (b"\xff", r"chat_template\.jinja: not UTF-8: invalid start byte at byte 0"),
    ],
)
def test_template_files_that_cannot_be_used_are_named_when_loaded(tmp_path, content, message):
    path = hf_dir(tmp_path / "m")
    (path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        from_hf(path)


def test_a_gguf_template_that_cannot_be_used_is_named_when_loaded():
    source = gguf_source()
    source.tokenizer["tokenizer.chat_template"] = "{% endif %}"
    with pytest.raises(ValueError, match=r"tiny\.gguf: tokenizer\.chat_template: line 1: no valid"):
        from_gguf(source)


def test_what_a_template_refuses_is_told_in_its_own_words(load):
    with pytest.raises(ValueError, match="no question to put the tools before"):
        load("llama3").apply_chat_template(RULED[:1], tools=[{}])
