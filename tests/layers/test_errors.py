"""Messages of errors: one line that a terminal shows as it is, also if they quote files and arguments."""

import pytest

from layers.errors import LONGEST, UsageError, VortaroError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NORM takes rms.", "NORM takes rms."),
        ("naïve 日本 🐈 \u2581", "naïve 日本 🐈 \u2581"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("one\ntwo\r\ttab\0", r"one\ntwo\r\ttab\x00"),
        ("\ud800 \u202e", r"\ud800 \u202e"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == str(UsageError(text)) == shown
    assert printable(shown) == shown


def test_long_messages_are_cut_in_their_middle():
    text = str(VortaroError(f"'{'x' * 10**6}' is unknown. Choose another."))
    assert len(text) < LONGEST
    assert text.startswith("'xxx")
    assert text.endswith("' is unknown. Choose another.")
    assert " ... " in text
