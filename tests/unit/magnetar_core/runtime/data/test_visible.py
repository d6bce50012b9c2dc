"""Characters that change the text around them."""

import unicodedata

import pytest

from magnetar_core.runtime.data.visible import controlling, visible

# Bidi_Control of Unicode, but the marks of a letter's direction (ALM, LRM, RLM), which texts in Arabic and Hebrew have.
EMBEDDING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_they_are_controls_ends_of_lines_and_what_turns_the_direction_of_writing() -> None:
    for number in range(0x11_0000):
        text = chr(number)
        changes = unicodedata.category(text) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(text) in EMBEDDING
        assert (controlling(f"a{text}b") is not None) == changes, hex(number)
        assert (visible(text) == text) == (not changes), hex(number)


@pytest.mark.parametrize(
    ("text", "shown", "in_lines"),
    [("a b", "a b", "a b"), ("a\nb\tc", "a\\nb\\tc", "a\nb\tc"), ("\x1b[2J", "\\x1b[2J", "\\x1b[2J"),
     ("x\r\ny", "x\\r\\ny", "x\\r\ny"), ("\u202eü", "\\u202eü", "\\u202eü"), ("\x85", "\\x85", "\\x85")],
)  # fmt: skip
def test_they_are_written_out(text: str, shown: str, in_lines: str) -> None:
    assert visible(text) == shown
    assert visible(text, lines=True) == in_lines


def test_the_first_of_them_is_named() -> None:
    assert controlling("a\nb\x00") == "U+000A"
    assert controlling("plain\xa0text") is None
