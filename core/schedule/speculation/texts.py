"""Texts of token ids that are searched for what was said before. Pure: one thread at a time.

A text is bytes, four a token, so that Python's own search in bytes finds what came last: 8 us
behind 4,000 tokens. No index.
"""

from array import array
from collections.abc import Sequence

__all__ = ["BORDER", "Follower", "Text"]

_WIDTH = 4
# How far back is looked, in tokens; and the longest suffix that is looked for at once.
FAR = 32_768
SUFFIX = 8
# Stands between two turns. It is nobody's token: a model that is fed it reads beyond its weights.
BORDER = 0xFFFFFFFF


class Text:
    """Token ids, of one turn or of many, that only grow at their end. Of `most` tokens at most
    the newest half is kept when they are full; `cut` counts the tokens that went."""

    def __init__(self, most: int | None = None) -> None:
        self._bytes = bytearray()
        self._most = most
        self.cut = 0

    def __len__(self) -> int:
        return len(self._bytes) // _WIDTH

    def add(self, ids: Sequence[int]) -> None:
        """More token ids at the end."""
        self._bytes += array("I", ids).tobytes()
        if self._most is not None and len(self) > self._most:
            gone = len(self) - self._most // 2
            del self._bytes[: gone * _WIDTH]
            self.cut += gone

    def read(self, place: int, count: int) -> list[int]:
        """Up to `count` ids from `place` on, counted from the first that ever was; of one turn."""
        begin = (place - self.cut) * _WIDTH
        ids = memoryview(self._bytes)[begin : begin + count * _WIDTH].cast("I").tolist()
        return ids[: ids.index(BORDER)] if BORDER in ids else ids

    def find(self, ids: Sequence[int], before: int) -> tuple[int, int]:
        """(length, place): how many of the last `ids` stand here, at their last place that ends
        before the place `before`, and what follows them; (0, 0) if not even the last one does."""
        wanted, end = array("I", ids[-SUFFIX:]).tobytes(), (before - self.cut) * _WIDTH
        first, most = max(0, end - FAR * _WIDTH), len(wanted) // _WIDTH
        length, at, longer = 0, 0, 1
        # From short to long: where a longer one ends, a shorter one does, so none is sought twice.
        while length < most:
            found = self._last(wanted[-longer * _WIDTH :], first, end)
            if found is None:
                break
            length, at, end = longer, found, (found + longer) * _WIDTH
            longer = min(2 * longer, most)
        return (self._longer(ids, at, length), self.cut + at + length) if length else (0, 0)

    def _last(self, wanted: bytes, first: int, end: int) -> int | None:
        """The last token from the byte `first` on at which `wanted` begins that ends before the
        byte `end`."""
        while (found := self._bytes.rfind(wanted, first, end)) >= 0:
            if found % _WIDTH == 0:
                return found // _WIDTH
            # Within a token: not a match.
            end = found + len(wanted) - 1
        return None

    def _longer(self, ids: Sequence[int], found: int, length: int) -> int:
        """How many of `ids` end where the `length` last do that were found."""
        most = min(2 * SUFFIX, len(ids), found + length)
        words = memoryview(self._bytes).cast("I")
        while length < most and words[found - 1] == ids[-length - 1]:
            found, length = found - 1, length + 1
        return length


class Follower:
    """One turn's tokens, followed through a `text`: where in it stands what was said last. Its own
    text grows with it (`own`)."""

    def __init__(self, text: Text, *, own: bool) -> None:
        self._text = text
        self._own = own
        self._place = self.length = 0

    def follow(self, tokens: Sequence[int]) -> bool | None:
        """The turn, whose last tokens these are, has one token more: its last. Whether that is what
        followed here; None if nothing did."""
        expected = self.ahead(1)
        if expected == [tokens[-1]]:
            self._place += 1
            self.length += 1
            return True
        # What a turn's own text ends with is no match.
        end = self._text.cut + len(self._text) - self._own
        self.length, self._place = self._text.find(tokens, end)
        return False if expected else None

    def ahead(self, count: int) -> list[int]:
        """What followed there, `count` tokens at most. A text that ends meanwhile goes on as it
        would if it repeated itself."""
        if not self.length or self._place < self._text.cut:
            return []
        found = self._text.read(self._place, count)
        if self._own and found:
            period = len(found)
            while len(found) < count:
                found.append(found[len(found) - period])
        return found
