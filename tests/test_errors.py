"""Messages that quote a stranger: short, and without what steers a terminal."""

from __future__ import annotations

from mrboost.errors import InputError, printable


def test_a_message_is_never_long() -> None:
    message = str(InputError("a file " + 10**6 * "x" + ": get it again"))
    assert len(message) < 2100
    assert message.startswith("a file x")
    assert message.endswith("x: get it again")
    assert str(InputError("short")) == "short"


def test_control_characters_are_shown_by_their_codes() -> None:
    assert printable("a\x1b[2J\x07\u0085\ud800é…") == "a\\x1b[2J\\x07\\x85\\ud800é…"
