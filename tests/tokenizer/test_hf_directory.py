"""What the files of a Hugging Face directory say of special tokens, ids, BOS and templates."""

import types

import pytest
import tokenizers

from asd_jax.tokenizer import check_vocabulary, from_checkpoint, from_gguf, from_hf
from tests.tiny_tokenizer import (
    BOS,
    CONTROL,
    EOS,
    EOT,
    NORMAL,
    THINK,
    TINY_TOKENS,
    UNUSED,
    gguf_source,
    hf_dir,
)


def hf_source(path, **config):
    return types.SimpleNamespace(path=path, config=config, tokenizer={"directory": path})


def test_hf_directory(tmp_path):
    path = hf_dir(
        tmp_path / "m",
        bos=True,
        tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "</s>"}},
        generation_config={"eos_token_id": [17, EOT]},
        config={"eos_token_id": EOS},
    )
    tokenizer = from_hf(path)
    assert (tokenizer.bos_id, tokenizer.stop_ids) == (BOS, (17, EOS, EOT))
    assert tokenizer.adds_bos
    assert BOS not in tokenizer.encode("the"), "no special tokens unless asked"
    assert tokenizer.encode("the", add_bos=True)[0] == BOS
    again = from_checkpoint(hf_source(path))
    assert again.encode(" th") == tokenizer.encode(" th") == [257]


def test_truncation_and_padding_saved_with_a_tokenizer_are_undone(tmp_path):
    path = hf_dir(tmp_path / "m")
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(path / "tokenizer.json"))
    assert len(from_hf(path).encode("abcd")) == 4


def test_a_null_bos_beats_the_one_of_the_config(tmp_path):
    config = {"bos_token_id": EOS}
    path = hf_dir(tmp_path / "m", tokenizer_config={"bos_token": None}, config=config)
    assert from_hf(path).bos_id is None
    (path / "tokenizer_config.json").unlink()
    assert from_hf(path).bos_id == EOS


def test_bad_hf_tokenizers_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
        from_hf(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"tokenizer\.model must be converted"):
        from_hf(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: corrupt tokenizer"):
        from_hf(tmp_path)
    path = hf_dir(tmp_path, tokenizer_config={"eos_token": "<nope>"})
    with pytest.raises(
        ValueError, match=r"config\.json: eos_token: got '<nope>', which tokenizer\.json has no"
    ):
        from_hf(path)
    (path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: invalid JSON"):
        from_hf(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected a JSON object, got list"),
        ("3", "expected a JSON object, got int"),
        ("{", "invalid JSON"),
        ("[" * 100_000, "invalid JSON: nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "invalid JSON: "),
    ],
    ids=["list", "number", "open", "nested", "digits"],
)
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_damaged_tokenizer_config_is_what_is_named(tmp_path, content, message, has_tokenizer):
    path = hf_dir(tmp_path / "m")
    (path / "tokenizer_config.json").write_text(content)
    if not has_tokenizer:
        (path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json: {message}"):
        from_checkpoint(hf_source(path))


@pytest.mark.parametrize("size", [None, "9", 0, -5, True, 9.0])
def test_without_a_tokenizer_there_must_be_a_vocabulary(tmp_path, size):
    source = hf_source(tmp_path, vocab_size=size)
    with pytest.raises(ValueError, match=f"has no tokenizer, and vocab_size: got {size!r}, allow"):
        from_checkpoint(source)


def test_chat_templates_of_every_form(tmp_path):
    message = [{"role": "user", "content": "hi"}]
    path = hf_dir(tmp_path / "m", tokenizer_config={"chat_template": "one"})
    assert from_hf(path).apply_chat_template(message) == "one"
    named = [{"name": "default", "template": "two"}, {"name": "rag", "template": "three"}]
    hf_dir(path, tokenizer_config={"chat_template": named})
    assert from_hf(path).apply_chat_template(message) == "two"
    assert from_hf(path).apply_chat_template(message, template="rag") == "three"
    (path / "chat_template.json").write_text('{"chat_template": "three and a half"}')
    assert from_hf(path).apply_chat_template(message) == "three and a half"
    (path / "chat_template.jinja").write_text("four")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "extra.jinja").write_text("five")
    assert from_hf(path).apply_chat_template(message) == "four"
    assert from_hf(path).apply_chat_template(message, template="extra") == "five"


# Stop ids


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (EOS, EOS, (EOS,)),
        ([EOT, 17], EOS, (17, EOS, EOT)),
        ([EOT, EOT], None, (EOT,)),
        (None, [17, EOS], (17, EOS)),
        ([], None, ()),
    ],
)
def test_stop_ids_are_the_union_of_what_the_configs_declare(tmp_path, generation, config, expected):
    path = hf_dir(
        tmp_path / "m",
        generation_config={"eos_token_id": generation},
        config={"eos_token_id": config, "vocab_size": 261},
    )
    assert from_hf(path).stop_ids == expected


def test_end_tokens_by_name_are_stop_ids_too(tmp_path):
    named = {"eos_token": "</s>", "eot_token": {"content": "<|end|>"}}
    path = hf_dir(tmp_path / "m", tokenizer_config=named, config={"eos_token_id": 17})
    assert from_hf(path).stop_ids == (17, EOS, EOT)


@pytest.mark.parametrize("value", [-1, True, "2", 2.0, 300, [5, 300], [[5]], {"id": 5}])
@pytest.mark.parametrize("name", ["generation_config", "config"])
def test_a_bad_stop_id_names_file_field_value_and_what_is_allowed(tmp_path, name, value):
    files = {"config": {"vocab_size": 300}}
    files.setdefault(name, {})["eos_token_id"] = value
    with pytest.raises(ValueError) as caught:
        from_hf(hf_dir(tmp_path / "m", **files))
    assert f"{name}.json: eos_token_id: got {value!r}, allowed is an id 0..299, a list" in str(
        caught.value
    )


def test_stop_ids_may_be_padding_rows_but_without_a_model_only_tokens(tmp_path):
    path = hf_dir(tmp_path / "m", config={"eos_token_id": 299, "vocab_size": 300})
    assert from_hf(path).stop_ids == (299,)
    hf_dir(path, config={"eos_token_id": 261})
    with pytest.raises(ValueError, match=r"got 261, allowed is an id 0\.\.260"):
        from_hf(path)


def test_bad_stop_ids_of_a_gguf_are_named():
    with pytest.raises(
        ValueError, match=r"tiny\.gguf: config: eos_token_id: got -1, allowed is an"
    ):
        from_gguf(gguf_source(config={"eos_token_id": -1}))
    with pytest.raises(ValueError, match=r"special ids \{'eos': 'x'\} are outside the 261 tokens"):
        from_gguf(gguf_source(eos_token_id="x"))


# Added tokens and the size of the vocabulary


def test_tokens_of_older_exports_are_added_with_their_ids(tmp_path):
    tokenizer = from_hf(hf_dir(tmp_path / "m", tokenizer_config=THINK))
    assert tokenizer.num_ids == 263
    assert tokenizer.encode("a<think></think>") == [tokenizer.encode("a")[0], 261, 262]
    assert tokenizer.decode([261]) == "<think>", "added, but not special"


def test_a_listed_token_that_is_in_the_vocabulary_already_becomes_whole(tmp_path):
    listed = {"257": {"content": "Ġth", "special": True}, "259": {"content": "</s>"}}
    tokenizer = from_hf(hf_dir(tmp_path / "m", tokenizer_config={"added_tokens_decoder": listed}))
    assert tokenizer.num_ids == 261
    assert tokenizer.encode("Ġth") == [257]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"258": {"content": "</s>"}}, "got id 258 for '</s>', which tokenizer.json makes 259"),
        ({"270": {"content": "<new>"}}, "got id 270 for '<new>', which tokenizer.json makes 261"),
        ({"x": {"content": "a"}}, "must be an object of id -> object with content"),
        ({"1": {}}, "must be an object of id"),
        ([], "must be an object of id"),
        ({"261": {"content": "x"}, "0261": {"content": "y"}}, "got id 261 for .*, which"),
    ],
)
def test_bad_added_tokens_are_named(tmp_path, listed, message):
    path = hf_dir(tmp_path / "m", tokenizer_config={"added_tokens_decoder": listed})
    with pytest.raises(ValueError, match=f"tokenizer_config.json: added_tokens_decoder: {message}"):
        from_hf(path)


@pytest.mark.parametrize("token", [3, ["<s>"], {"text": "<s>"}])
def test_a_special_token_is_a_text_or_has_content(tmp_path, token):
    path = hf_dir(tmp_path / "m", tokenizer_config={"bos_token": token})
    with pytest.raises(
        ValueError, match=r"tokenizer_config\.json: bos_token: got .*, allowed is a"
    ):
        from_hf(path)


def test_a_model_may_have_more_ids_than_its_tokenizer_but_not_fewer(tmp_path):
    path = hf_dir(tmp_path / "m", tokenizer_config=THINK)
    tokenizer = from_checkpoint(hf_source(path, vocab_size=320))
    assert tokenizer.num_ids == 263
    assert tokenizer.decode([97, 263, 319, 2**40]) == tokenizer.decode([97])
    check_vocabulary(tokenizer, 263, path)
    with pytest.raises(
        ValueError, match="tokenizer has 263 ids, but the model's vocab_size is 262"
    ):
        from_checkpoint(hf_source(path, vocab_size=262))


def test_a_stream_skips_ids_without_a_token():
    decoder = from_gguf(gguf_source()).stream_decoder()
    assert [decoder.push(index) for index in (2**40, 261)] == ["", ""]
    assert decoder.flush() == ""


def test_padding_rows_that_a_gguf_names_are_no_tokens():
    padding = [f"[PAD{index}]" for index in range(261, 264)]
    kinds = [CONTROL if i >= BOS else NORMAL for i in range(261)] + [UNUSED] * 3
    kinds[3] = UNUSED
    source = gguf_source(tokens=[*TINY_TOKENS, *padding], token_type=kinds, config={})
    tokenizer = from_gguf(source)
    assert tokenizer.num_ids == 261
    assert len(tokenizer.encode("[PAD262]")) == 8
    with_pad = from_gguf(
        gguf_source(tokens=[*TINY_TOKENS, *padding], token_type=kinds, padding_token_id=261)
    )
    assert with_pad.num_ids == 262, "unless something refers to them"


# BOS of raw text


@pytest.mark.parametrize("in_pipeline", [True, False])
@pytest.mark.parametrize("declared", [None, True, False])
def test_raw_text_gets_the_bos_of_the_pipeline_once(tmp_path, in_pipeline, declared):
    config = {"bos_token": "<s>", "add_bos_token": declared}
    tokenizer = from_hf(hf_dir(tmp_path / "m", bos=in_pipeline, tokenizer_config=config))
    assert tokenizer.adds_bos == in_pipeline
    bos = [BOS] * in_pipeline
    assert tokenizer.encode("a", add_bos=True) == [*bos, *tokenizer.encode("a")]
    assert tokenizer.encode("<s>a", add_bos=True).count(BOS) == 1
