"""Cutting a text at its exceptions: nothing of the text and no exception is ever lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.audit import AuditError, Mark, cut, parse_answer
from tests.evaluation.audit.synthetic_rows import STOP, decode, encode, exception, make_row


def answer_of(turns, positions):
    ids = [token for turn in turns for token in turn]
    entries = [exception(p, ids[p], ord("?"), 0.25) for p in positions]
    return parse_answer(make_row("a", "asd", None, None, entries, turns=turns))


def shown(pieces):
    return [(piece.text, piece.exception.num if piece.exception else 0) for piece in pieces]


@given(
    st.lists(st.text("aé€𝄞\n", max_size=6), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_pieces_concatenate_and_hold_every_exception(texts, is_stopped, data):
    turns = [encode(text, is_stopped=is_stopped) for text in texts]
    size = sum(map(len, turns))
    positions = sorted(data.draw(st.sets(st.integers(0, size - 1)))) if size else []
    answer = answer_of(turns, positions)
    pieces = cut(answer, decode)
    assert "".join(piece.text for piece in pieces) == answer.text
    marks = [piece.exception for piece in pieces if piece.exception]
    assert sum(mark.num for mark in marks) == len(positions)
    assert sum(mark.regret for mark in marks) == pytest.approx(0.25 * len(positions))
    assert [mark.position for mark in marks] == sorted(mark.position for mark in marks)
    assert all(piece.text or piece.exception for piece in pieces)
    plain = [piece.exception is None for piece in pieces]
    assert not any(a and b for a, b in zip(plain, plain[1:], strict=False))


@given(st.binary(min_size=1, max_size=12), st.data())
def test_bytes_that_are_no_text_are_cut_as_well(content, data):
    positions = sorted(data.draw(st.sets(st.integers(0, len(content) - 1))))
    answer = answer_of([list(content)], positions)
    pieces = cut(answer, decode)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert sum(piece.exception.num for piece in pieces if piece.exception) == len(positions)


@pytest.mark.parametrize("place", range(1, 5))
def test_a_part_of_a_character_takes_the_whole_of_it(place):
    answer = answer_of([encode("a𝄞b")], [place])
    assert shown(cut(answer, decode)) == [("a", 0), ("𝄞", 1), ("b", 0)]


def test_exceptions_that_share_a_character_are_one_piece():
    answer = answer_of([encode("aéb")], [1, 2, 3])
    assert shown(cut(answer, decode)) == [("a", 0), ("é", 2), ("b", 1)]
    assert cut(answer, decode)[1].exception == Mark(1, "\ufffd\ufffd", "??", 0.5, 2)


def test_an_exception_without_text_keeps_its_place():
    answer = answer_of([[97, STOP, 98]], [1])
    assert shown(cut(answer, decode)) == [("a", 0), ("", 1), ("b", 0)]


def test_turns_are_joined_by_a_blank_line():
    answer = answer_of([encode("ab"), encode("cd")], [0, 4])
    assert shown(cut(answer, decode)) == [("a", 1), ("b\n\nc", 0), ("d", 1)]
    assert [p.exception.position for p in cut(answer, decode) if p.exception] == [0, 4]


def test_without_a_trace_there_is_one_piece():
    row = make_row("a", "asd", encode("abc"))
    del row["exceptions"]
    assert shown(cut(parse_answer(row), decode)) == [("abc", 0)]


def test_another_tokenizer_is_refused():
    answer = answer_of([encode("abc")], [1])
    with pytest.raises(AuditError, match="a, asd, turn 0: decode: got 'ABC'.* allowed is .*'abc'"):
        cut(answer, lambda ids: decode(ids).upper())
