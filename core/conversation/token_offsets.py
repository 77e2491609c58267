"""Where each token ends in the text it stands for, and what text tokens say as they come, found by
decoding alone. Pure: any thread.

    token_ends(decode, tokens of "a 🦊b", "a 🦊b")      byte-level: "a", " ", 4 bytes, "b"
    -> [1, 2, 3, 3, 3, 3, 4]

A tokenizer may split a character over tokens, and may change white space and case on the way.
So a token ends where the decoded text so far has been found in the text; one that shows
nothing whole yet ends with the token that completes it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from kvactors.core.conversation.hashing import common_prefix

__all__ = [
    "Detokenizer",
    "token_boundary",
    "token_ends",
    "whole_text",
    "written_ends",
    "written_within",
]

# Tokens that one character, or a run of characters decoded together, may take.
LONGEST_GROUP = 32
INCOMPLETE = "\ufffd"


def token_ends(
    decode: Callable[[Sequence[int]], str], token_ids: Sequence[int], text: str
) -> list[int]:
    """Character offset in `text` at which each of `token_ids` ends, ascending; linear in the
    tokens. `decode` gives the text of some.

    From the first token on whose characters are not found in the text (an unknown token, a
    normalized letter), all end with the text: they can only be kept together.
    """
    ends: list[int] = []
    place = 0
    shown: list[int] = []
    fresh: list[int] = []
    before = ""
    for token in token_ids:
        # The last tokens shown are decoded too: some decoders strip a space in front.
        fresh.append(token)
        after = decode([*shown, *fresh])
        piece = after[len(before) :] if after.startswith(before) else ""
        found = _find(text, place, piece)
        if found is not None:
            place = found
            ends += [place] * len(fresh)
            shown, fresh = fresh, []
            before = decode(shown)
        elif len(fresh) == LONGEST_GROUP:
            break
    return ends + [len(text)] * (len(token_ids) - len(ends))


def whole_text(decode: Callable[[Sequence[int]], str], token_ids: Sequence[int]) -> str:
    """The text of `token_ids` by `decode`, without a last character that more of them complete."""
    return decode(token_ids).rstrip(INCOMPLETE)


class Detokenizer:
    """What tokens say as they come, by `decode`, `behind` some others. One thread at a time.

    Some decoders strip a space at the beginning of what they are given: the last tokens shown are
    decoded with those that are new. A character of several tokens shows once it is whole.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], behind: Sequence[int] = ()) -> None:
        self._decode = decode
        self._shown, self._fresh = list(behind), list[int]()
        self._before = whole_text(decode, behind)
        # What begins in the middle of a character says nothing alone.
        self._cut = self._before != decode(behind)

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is whole with these further tokens, which no later ones change."""
        self._fresh += tokens
        if not self._fresh:
            return ""
        both = [*self._shown, *self._fresh]
        after = self._decode(both)
        said = after[len(self._before) :]
        if after.endswith(INCOMPLETE):
            # Of one character the end may come with the beginning of the next.
            said = said.rstrip(INCOMPLETE)
            self._before += said
        else:
            self._shown, self._fresh = both if self._cut else self._fresh, []
            self._before, self._cut = self._decode(self._shown), False
        return said


def token_boundary(ends: Sequence[int], characters: int) -> int:
    """Tokens that lie wholly within the first `characters` characters; `ends` ascending."""
    return bisect_right(ends, characters)


def written_ends(
    decode: Callable[[Sequence[int]], str],
    begins: tuple[int, ...],
    token_ids: Sequence[int],
    text: str,
) -> list[int]:
    """As `token_ends` of `token_ids` in a `text` by `decode`, where the tokens `begins`, with which
    the tokenizer begins texts and which nobody wrote, end with the one behind them."""
    added = len(begins)
    if tuple(token_ids[:added]) != begins or text.startswith(decode(begins)):
        added = 0
    ends = token_ends(decode, token_ids[added:], text)
    return [*ends[:1] * added, *ends]


def written_within(text: str, written: str, characters: int, write: Callable[[str], str]) -> str:
    """What of a `text` stands in the first `characters` of what was `written` of it, as `write`
    does: a template may trim what is said, or write it in another way."""
    if written.startswith(text):
        return text[:characters]

    def reached(length: int) -> int:
        return common_prefix(write(text[:length]), written)

    return text[: bisect_right(range(len(text) + 1), characters, key=reached) - 1]


def _find(text: str, place: int, piece: str) -> int | None:
    """Where a decoded piece that begins at `place` ends, or None if that cannot be told.

    White space that the tokenizer added, dropped or changed is passed over, and letters match
    whatever their case; a piece that ends in such white space waits for the next one.
    """
    if not piece or piece.endswith(INCOMPLETE):
        return None
    if text.startswith(piece, place):
        return place + len(piece)
    if piece[-1].isspace():
        return None
    for character in piece:
        if character.isspace():
            continue
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text) or text[place].casefold() != character.casefold():
            return None
        place += 1
    return place
