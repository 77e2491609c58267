"""How often drafts are right, and what checking them costs: learned, for the whole engine.
Pure: one thread at a time.

The chance that the next token is what followed a match grows with the length of the match, and
hardly depends on who speaks: it is learned by (source, length), from plain steps too, whose token a
draft that was not fed would have said. What a token more costs a forward is measured on the device.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

__all__ = [
    "LEAST_CHANCE",
    "MODEL",
    "MOST_DRAFTED",
    "OTHERS",
    "OWN",
    "SOURCES",
    "Acceptance",
    "Costs",
    "Draft",
    "share_out",
]

# Lengths of a match that count as one, by their least, and how often the next token was right on
# texts of several kinds, where nothing is known yet.
_FROM = (1, 2, 3, 4, 6, 10, 18)
_BEFORE = (0.25, 0.47, 0.52, 0.65, 0.75, 0.86, 0.92)
# Where drafts come from: what a turn itself said or was told, replies of others, a draft model.
SOURCES = OWN, OTHERS, MODEL = "own", "others", "model"
# How often a draft model is right where nothing is known yet: so often that it is tried.
_MODEL_BEFORE = 0.95
# What was known before counts as so many observations; beyond MOST the older ones fade.
_WEIGHT, _MOST = 8.0, 512.0
# A draft ends where the chance that it gets so far is less.
LEAST_CHANCE = 0.1
MOST_DRAFTED = 15
# What a token more costs, and one of padding, of a step of one row, before it was measured; and any
# draft: who checks one launches no step ahead.
TOKEN_COST, PADDING_COST, CHECK_COST = 0.08, 0.02, 0.1
# Each end of that line counts as so many forwards that checked something; older ones fade.
_SURE, _FADES = 2.0, 0.98
# What a draft model's token costs, in plain steps, and of that one of a prompt that it is fed,
# before they were measured.
DRAFT_COST, FEED_COST = 0.35, 0.03
# Forwards after which it is measured again what a plain one takes, if none was among them.
STALE = 200
# Plain steps that are measured before a draft model is asked: the first ones of a process are slow.
MEASURED = 6


@dataclass(frozen=True, slots=True)
class Draft:
    """What a turn may say next: `tokens`, and the chance that each is right if those before are.
    Each costs so much, in plain steps, to `make`; those are made when it is known how many are
    wanted."""

    tokens: Sequence[int]
    chances: Sequence[float]
    source: str
    make: float = 0.0

    @property
    def worth(self) -> float:
        """What its first token gives for what it costs."""
        return self.chances[0] - self.make if self.tokens else 0.0


class Acceptance:
    """The chance that a drafted token is right, by the `source` of the draft and the length of the
    match behind it."""

    def __init__(self) -> None:
        self._seen: dict[str, list[list[float]]] = {}

    def chance(self, source: str, length: int) -> float:
        """Of the token behind a match of so many tokens."""
        right, seen = self._of(source, length)
        return right / seen

    def note(self, source: str, length: int, *, right: bool) -> None:
        """The token behind a match of `length` in this `source` was `right`, or not."""
        counts = self._of(source, length)
        counts[0] += right
        counts[1] += 1
        if counts[1] > _MOST:
            counts[:] = [count / 2 for count in counts]

    def doubt(self, source: str) -> None:
        """Nothing of a `source` was tried for a turn: what it is known by fades."""
        for counts, before in zip(self._seen.get(source, ()), _before(source), strict=False):
            counts[:] = [
                0.95 * count + 0.05 * known
                for count, known in zip(counts, (_WEIGHT * before, _WEIGHT), strict=True)
            ]

    def _of(self, source: str, length: int) -> list[float]:
        known = self._seen.get(source)
        if known is None:
            known = self._seen[source] = [[_WEIGHT * one, _WEIGHT] for one in _before(source)]
        return known[max(0, bisect_right(_FROM, length) - 1)]


def _before(source: str) -> Sequence[float]:
    return [_MODEL_BEFORE] * len(_BEFORE) if source == MODEL else _BEFORE


@dataclass(slots=True)
class _Line:
    """What a check costs more than a plain step: `fixed`, and `steep` times how it grows, of what
    was seen lately (least squares)."""

    fixed: float = CHECK_COST
    steep: float = 1.0
    # Sums of 1, x, y, x * x and x * y.
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def at(self, x: float) -> float:
        """The cost where it has grown so far."""
        return self.fixed + self.steep * x

    def note(self, x: float, y: float) -> None:
        """It was `y` there. A busy moment counts no more than twice what is known."""
        y = min(y, 1.0 + 2.0 * self.at(x))
        seen = zip(self._sums, (1.0, x, y, x * x, x * y), strict=True)
        self._sums = [_FADES * total + one for total, one in seen]
        self._fit()

    def doubt(self) -> None:
        """What was seen fades a little."""
        self._sums = [0.99 * total for total in self._sums]
        self._fit()

    def _fit(self) -> None:
        known = (2.0, 1.0, 2.0 * CHECK_COST + 1.0, 1.0, CHECK_COST + 1.0)
        n, x, y, xx, xy = (t + _SURE * k for t, k in zip(self._sums, known, strict=True))
        self.steep = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self.fixed = max(0.0, (y - self.steep * x) / n)


@dataclass(slots=True)
class Costs:
    """What a forward that checks drafts takes, in plain steps of the same rows: how it grows is
    known (bench/LOG.md), how steeply, and from where on, is measured on the device."""

    _plain: dict[int, float] = field(default_factory=dict)
    _check: _Line = field(default_factory=_Line)
    # Seconds of a draft model for a token; and what one costs that it is fed, of that.
    _draft: float | None = None
    _feed: float = FEED_COST
    # Forwards since a plain one of so many rows.
    _since: dict[int, int] = field(default_factory=dict)
    _measured: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def known(self, rows: int) -> bool:
        """Whether it was measured lately what a plain step of `rows` rows takes."""
        return self._since.get(rows, STALE) < STALE and self._measured[rows] >= MEASURED

    def draft(self, rows: int) -> float:
        """Of a token of a draft model, in plain steps of `rows` rows."""
        plain = self._plain.get(rows)
        return DRAFT_COST if plain is None or self._draft is None else self._draft / plain

    def feed(self, rows: int, tokens: int) -> float:
        """Of feeding a draft model so many `tokens`, in plain steps of `rows` rows."""
        return tokens * self._feed * self.draft(rows)

    def note_draft(self, rows: int, fed: int, drafted: int, seconds: float) -> None:
        """Beside `rows` rows a draft model took so many `seconds` to be `fed` so many tokens, and
        for those that it `drafted`."""
        known = self._draft or DRAFT_COST * self._plain.get(rows, seconds)
        if fed <= drafted + MOST_DRAFTED:
            self._draft = _undisturbed(known, seconds / (drafted + fed * self._feed))
        else:
            found = max(0.0, seconds / known - drafted) / fed
            self._feed = _undisturbed(self._feed, found)

    def of(self, rows: int, more: int, longest: int) -> float:
        """Of a forward of `rows` rows with so many tokens `more`, the longest draft being so
        long."""
        return 1.0 + self._check.at(_growth(rows, more, longest)) if more else 1.0

    def note_plain(self, rows: int, seconds: float) -> None:
        """A plain step of `rows` rows took so long."""
        self._plain[rows] = _undisturbed(self._plain.get(rows, seconds), seconds)
        self._since[rows] = 0
        self._measured[rows] += 1
        # What was measured long ago is doubted: it may have been a busy moment.
        self._check.doubt()
        if self._draft is not None:
            usual = DRAFT_COST * self._plain[rows] / math.sqrt(rows)
            self._draft += 0.03 * (usual - self._draft)

    def note(self, rows: int, more: int, longest: int, seconds: float) -> None:
        """A forward of `rows` rows with `more` tokens, the `longest` draft being so long, took so
        many `seconds`."""
        plain = self._plain.get(rows)
        if plain is not None:
            self._since[rows] += 1
            self._check.note(_growth(rows, more, longest), seconds / plain - 1.0)


def _growth(rows: int, more: int, longest: int) -> float:
    """What more tokens cost, and what rows of fewer are padded by, if it is as it was found where
    it was tried: a step of more rows takes about as their root."""
    return (TOKEN_COST * more + PADDING_COST * rows * longest) / math.sqrt(rows)


def share_out(drafts: Sequence[Draft], rows: int, costs: Costs, *, least: float) -> list[int]:
    """How many tokens of each of `drafts` to feed in one forward of `rows` rows: those with the
    best chances first, as long as tokens by what `costs` say grow, and none where that is less than
    `least` times a plain step's.

    One is added with the chance that all before it are right too.
    """
    taken, order, longest = [0] * len(drafts), list[int](), 0
    heap = [(-draft.chances[0], index) for index, draft in enumerate(drafts) if draft.tokens]
    heapify(heap)
    # Of the tokens in the order in which they are added, the first `best` are fed.
    gain, best, expected, made = 1.0, 0, float(rows), 0.0
    while heap and -heap[0][0] >= LEAST_CHANCE:
        chance, index = -heap[0][0], heap[0][1]
        order.append(index)
        taken[index] += 1
        longest = max(longest, taken[index])
        expected, made = expected + chance, made + drafts[index].make
        worth = expected / rows / (costs.of(rows, len(order), longest) + made)
        if worth > gain:
            gain, best = worth, len(order)
        draft, place = drafts[index], taken[index]
        onward = place < min(len(draft.tokens), MOST_DRAFTED)
        heapreplace(heap, (-chance * draft.chances[place] if onward else 0.0, index))
    fed = Counter(order[:best] if gain >= least else ())
    return [fed[index] for index in range(len(drafts))]


def _undisturbed(before: float, sample: float) -> float:
    """How long something takes: who is quick was less disturbed than who is slow."""
    if sample < before:
        return 0.6 * before + 0.4 * sample
    return 0.9 * before + 0.1 * min(sample, 2.0 * before)
