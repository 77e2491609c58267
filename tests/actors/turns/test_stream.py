"""The text of a stream: equal to the reply's, whatever the tokenizer does."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.turns.stream import ReplyStream, _Text
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.token_offsets import Detokenizer
from kvactors.core.schedule.events import Tokens
from kvactors.core.schedule.request import StopMatcher
from kvactors.core.testing.models import PlainTokenizer


class Pieces(PlainTokenizer):
    """Tokens are given pieces of text; like sentencepiece, decoding strips a first space."""

    def __init__(self, pieces: list[str], strip: bool = True) -> None:
        super().__init__()
        self.pieces = [piece.encode() for piece in pieces]
        self.strip = strip
        self.eos_token_ids = set()

    def decode(self, tokens: list[int]) -> str:
        text = b"".join(self.pieces[token] for token in tokens).decode(errors="replace")
        return text.removeprefix(" ") if self.strip else text


class Searched(str):
    """A text that counts the characters in which something was looked for."""

    looked_at = 0

    def __radd__(self, before: str) -> "Searched":
        return Searched(before + str(self))

    def __add__(self, after: str) -> "Searched":
        return Searched(str(self) + str(after))

    def __getitem__(self, place: Any) -> "Searched":
        return Searched(str(self)[place])

    def find(self, string: str, begin: int = 0) -> int:  # type: ignore[override]
        Searched.looked_at += len(self) - begin
        return super().find(string, begin)


def streamed(pieces: list[str], stop: tuple[str, ...] = (), strip: bool = True) -> tuple[str, str]:
    """(what a stream showed before its end, the reply's text). A stop string ends both."""
    chat = ChatFormat(Pieces(pieces, strip))
    text, shown = _Text(chat, stop), ""
    matcher = StopMatcher(stop, chat.decode)
    tokens: list[int] = []
    while len(tokens) < len(pieces) and not matcher.matches(tokens):
        tokens.append(len(tokens))
        stable = text.add(tokens[-1:])
        assert stable.startswith(shown)
        shown = stable
    return shown, chat.reply_text(tokens, stop)


def test_a_stop_string_of_the_prompt_ends_no_answer() -> None:
    chat = ChatFormat(Pieces(["STOP", "a", "ST", "OP"], strip=False))
    matcher = StopMatcher(("STOP",), chat.decode)

    found = [matcher.matches([0, 1, 2, 3][:end], 1) for end in (2, 3, 4)]

    assert found == [False, False, True]


def test_a_stop_string_that_begins_with_a_blank_is_found_behind_what_an_answer_goes_on_with() -> (
    None
):
    decode = ChatFormat(Pieces(["Hello", " world", " x", " world"])).decode

    behind = StopMatcher((" world",), decode, [0])

    assert behind.matches([0, 1], 1)
    assert not behind.matches([1, 0], 1)
    assert not StopMatcher((" world",), decode).matches([1])


def test_a_character_is_shown_when_it_is_whole_though_its_token_begins_another() -> None:
    pieces = Pieces([])
    pieces.pieces = [b"d\xe6", b"\x97\xa5\xe6", b"\x97\xa5"]
    said = Detokenizer(ChatFormat(pieces).decode)

    assert [said.add([token]) for token in range(3)] == ["d", "日", "日"]


def test_what_an_answer_goes_on_with_stops_nothing() -> None:
    decode = ChatFormat(Pieces(["a STOP", " b"])).decode

    assert not StopMatcher(("STOP",), decode, [0]).matches([0, 1], 1)


@given(st.lists(st.text(st.sampled_from(" abé\n🦊"), min_size=1, max_size=3), max_size=12))
def test_what_is_shown_is_a_beginning_of_the_reply(pieces: list[str]) -> None:
    shown, reply = streamed(pieces)

    assert reply.startswith(shown)
    assert shown == reply


@given(
    st.lists(st.text(st.sampled_from("ab "), min_size=1, max_size=4), max_size=10),
    st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=9), min_size=1, max_size=2),
)
def test_no_stop_string_is_ever_shown(pieces: list[str], stop: list[str]) -> None:
    shown, reply = streamed(pieces, tuple(stop), strip=False)

    assert reply.startswith(shown)
    assert not any(string in shown for string in stop)


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["Hello", ".\n\n"], ("\n",), "Hello."),
        (["a", "END and more"], ("END",), "a"),
        (["A\n", " B", " C"], (), "A\n B C"),
    ],
)
def test_the_text_ends_where_the_reply_ends(
    pieces: list[str], stop: tuple[str, ...], expected: str
) -> None:
    assert streamed(pieces, stop) == (expected, expected)


class Searchable(ChatFormat):
    """Decodes to texts that count."""

    def decode(self, tokens: Sequence[int]) -> str:
        return Searched(super().decode(tokens))


def test_stop_strings_are_looked_for_where_new_text_may_complete_them() -> None:
    text = _Text(Searchable(Pieces(["word"] * 100, strip=False)), ("stop",))
    Searched.looked_at = 0

    for token in range(100):
        text.add([token])

    assert 400 <= Searched.looked_at <= 100 * (len("word") + len("stop"))


def test_a_character_of_several_tokens_shows_once_it_is_whole() -> None:
    tokenizer = Pieces([])
    tokenizer.pieces = [bytes([byte]) for byte in "🦊".encode()]
    text = _Text(ChatFormat(tokenizer), ())

    assert [text.add([token]) for token in range(4)] == ["", "", "", "🦊"]


def test_leaving_the_loop_over_a_stream_cancels_the_turn_at_once() -> None:
    ticket, cancelled = Ticket.begin("alice", streamed=True), list[str]()
    ticket.chat = ChatFormat(PlainTokenizer())
    ticket.push(Tokens("alice", ticket.serial, tuple(b"hello")))

    for piece in ReplyStream(ticket, (), lambda: cancelled.append("alice")):
        assert piece.text == "hello"
        break

    assert cancelled == ["alice"]
